"""`course class` says in a sentence why it does not start, and what it means to be reached by others."""

from __future__ import annotations

import pytest
from tornado.netutil import bind_sockets

from course_lib.classroom.server import ALONE, OPEN, Options, _announce
from course_lib.classroom.server.addresses import Address
from course_lib.classroom.server.record import Record
from course_lib.classroom.server.record_file import BadRecord
from course_lib.command import main


class OneRoom:
    title, code = "Monday", "k7mt-2x9q"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (Address("127.0.0.1", 8899), ALONE),
        (Address("0.0.0.0", 8899), OPEN),
        (Address("0.0.0.0", 8899, fingerprint="ab" * 32), ""),
    ],
)
def test_it_says_what_it_means_to_be_reached_by_others_or_by_none(capsys, address, told):
    _announce(Options(), OneRoom(), address, "token")  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    assert [sentence for sentence in (ALONE, OPEN) if sentence in printed] == [told] * bool(told)
    assert f"{address.learners}   code k7mt-2x9q" in printed


def test_a_port_that_is_taken_is_named_with_what_to_give(tmp_path, capsys):
    (taken,) = bind_sockets(0, "127.0.0.1")
    with taken:
        port = str(taken.getsockname()[1])
        assert main(["class", "--port", port, "--record", str(tmp_path / "class.db"), "--no-browser"]) == 2
    assert f"port {port}" in (told := capsys.readouterr().err)
    assert "give another --port" in told


def test_an_address_for_learners_is_a_whole_one(tmp_path, capsys):
    assert main(["class", "--address", "class.example", "--record", str(tmp_path / "class.db")]) == 2
    assert "give a whole address" in capsys.readouterr().err


def test_a_file_that_is_no_record_is_left_alone(tmp_path):
    file = tmp_path / "thesis.txt"
    file.write_text("chapter one" * 1000)
    with pytest.raises(BadRecord, match="give another file"):
        Record(file)
    assert file.read_text() == "chapter one" * 1000


def test_a_record_is_held_by_one_class_at_a_time(tmp_path):
    first = Record(tmp_path / "class.db")
    with pytest.raises(BadRecord, match="in use"):
        Record(tmp_path / "class.db")
    first.close()
    Record(tmp_path / "class.db").close()
