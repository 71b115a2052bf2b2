"""A desk joins a class, tells it what happens, loses the connection and finds it again; and nothing of it is felt."""

from __future__ import annotations

import sqlite3
import stat
import threading

import pytest

from course_lib import join_class, leave_class
from course_lib.classroom.learner import class_file, join, leave, membership, news, tell
from course_lib.classroom.learner import outbox as outbox_module
from course_lib.classroom.learner.channel import Channel, start_channel
from course_lib.classroom.learner.class_file import CannotJoin
from course_lib.classroom.learner.outbox import FILE, Outbox, only_one
from course_lib.runtime.machine import free_port
from tests.browser.lab import wait
from tests.classroom.conftest import in_another_process

TELL = "from course_lib.classroom.learner import tell"


def channels() -> list[Channel]:
    return [thread for thread in threading.enumerate() if isinstance(thread, Channel)]


def waiting(desk) -> list[str]:
    with Outbox.of(desk) as outbox:
        return [event["kind"] for event in outbox.waiting(class_file.read(desk).learner)]


def somebody_sends(desk) -> bool:
    lock = only_one(desk)
    if lock is not None:
        lock.close()
    return lock is None


def test_without_a_class_nothing_is_written_and_nothing_started(desk):
    before = sorted(desk.rglob("*"))
    assert tell("slower") == ""
    assert news() == {}
    assert sorted(desk.rglob("*")) == before
    assert channels() == []


def test_what_is_told_is_kept_by_the_class(desk, small_class):
    joined = join(*small_class.joining, "Ada")
    assert joined.title == "A small class"
    told = tell("predicted", number="00.1", said="a")
    (event,) = small_class.wait_for(1)
    assert event.pop("received") >= event.pop("at") > 0
    assert event == {"id": told, "kind": "predicted", "number": "00.1", "said": "a"}
    wait(lambda: waiting(desk) == [])


def test_the_secret_is_for_its_owner_alone_and_is_never_shown(desk, small_class):
    joined = join(*small_class.joining, "Ada")
    assert stat.S_IMODE((desk / ".course" / "class.json").stat().st_mode) == 0o600
    assert joined.secret
    assert joined.secret not in repr(joined)


def test_joining_says_what_is_sent_and_what_never_is_and_leaving_ends_it(desk, small_class, capsys):
    join_class(*small_class.joining, name="Ada")
    said = capsys.readouterr().out
    assert said.startswith("You are in A small class. Sent to the class: predictions")
    assert "Never your code" in said
    channel = start_channel(desk)
    leave_class()
    assert capsys.readouterr().out == "You have left A small class: nothing more is sent.\n"
    channel.join(30)
    assert tell("slower") == ""
    assert channels() == []
    leave_class()
    assert capsys.readouterr().out == "You are not in a class.\n"


def test_a_cell_that_joins_and_is_run_again_is_the_same_learner(desk, small_class):
    url, code = small_class.joining
    assert join(url, code, "Ada") == join(f"{url}/", code, "Ada")


def test_an_unencrypted_connection_is_named_unless_it_stays_on_this_machine():
    def warning(url: str) -> str:
        return class_file.Membership(url, "1", "s", "A class").warning

    assert "not encrypted" in warning("http://192.168.0.7:8899")
    for url in ("https://192.168.0.7:8899", "http://127.0.0.1:8899", "http://localhost:8899", "http://[::1]:8899"):
        assert warning(url) == ""


@pytest.mark.parametrize(
    "url", ["", "nowhere at all", "ftp://class", "http://", "http://host:port", "http://host:99999"]
)
def test_what_is_no_address_is_refused_with_an_example(desk, url):
    with pytest.raises(CannotJoin, match=r"not the address of a class, which looks like http://192\.168"):
        join(url, "CODE", "Ada")


def test_whoever_has_the_wrong_code_is_told_what_the_class_says(desk, small_class):
    with pytest.raises(CannotJoin, match="this is not the code of the class"):
        join(small_class.served.url, "WRONG", "Ada")
    assert membership() is None


def test_where_nobody_answers_it_is_said_what_to_look_at(desk):
    with pytest.raises(CannotJoin, match=r"no answer from .*: is `course class` running there"):
        join(f"127.0.0.1:{free_port()}", "CODE", "Ada")


def test_what_was_told_before_a_kill_is_sent_by_the_next_process(desk, small_class):
    join(*small_class.joining, "Ada")
    small_class.stop()
    told = in_another_process(
        f"import os, signal\n{TELL}\nfor n in range(20): tell('showed', source=str(n))\n"
        "print('told', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)",
        desk,
    )
    assert told.stdout.read() == "told\n"
    assert told.wait() < 0
    small_class.start()
    assert [event["source"] for event in small_class.wait_for(20)] == [str(n) for n in range(20)]


def test_after_the_class_was_killed_each_event_is_in_its_record_once(desk, small_class):
    join(*small_class.joining, "Ada")
    told = [tell("showed", source="1")]
    small_class.wait_for(1)
    small_class.stop()
    told += [tell("showed", source=str(n)) for n in range(2, 60)]
    wait(lambda: news().get("reached") is False)
    small_class.start()
    told += [tell("showed", source="60")]
    assert sorted(event["id"] for event in small_class.wait_for(60)) == sorted(told)
    wait(lambda: news()["reached"])


def test_an_answer_that_got_lost_is_no_second_event(desk, small_class):
    """The class has kept it, and died before it could say so."""
    joined = join(*small_class.joining, "Ada")
    told = tell("showed", source="1")
    small_class.wait_for(1)
    wait(lambda: waiting(desk) == [])
    with Outbox.of(desk) as outbox:
        outbox.put(joined.learner, {"id": told, "kind": "showed", "source": "1"})
    wait(lambda: waiting(desk) == [])
    assert len(small_class.kept()) == 1


def test_what_the_class_refuses_is_not_sent_again_and_the_reason_is_known(desk, small_class):
    join(*small_class.joining, "Ada")
    told = tell("predicted", number="99.9", said="a")
    wait(lambda: news().get("refused", {}).get("id") == told)
    assert "there is no prediction '99.9'" in news()["refused"]["why"]
    assert waiting(desk) == []


def test_what_the_class_says_is_known_to_every_process_of_the_desk(desk, small_class):
    join(*small_class.joining, "Ada")
    small_class.act("ask", number="00.1", round="before")
    wait(lambda: news().get("state", {}).get("asked"))
    other = in_another_process(
        "from course_lib.classroom.learner import news\nprint(news()['state']['asked']['number'])", desk
    )
    assert other.communicate()[0] == "00.1\n"


def test_a_class_that_does_not_know_us_is_not_asked_again_and_can_be_joined_anew(desk, small_class):
    first = join(*small_class.joining, "Ada")
    small_class.stop()
    for file in small_class.record.parent.iterdir():
        file.unlink()
    small_class.start()
    wait(lambda: news().get("unknown"))
    assert start_channel(desk).is_alive()
    join(*small_class.joining, "Grace")
    assert class_file.read(desk) != first
    wait(lambda: news().get("reached"))


@pytest.mark.slow  # it waits for its turn; that what a dead process told is sent by the next is tested above
def test_one_process_of_a_desk_is_connected_and_the_next_follows_when_it_dies(desk, small_class):
    join(*small_class.joining, "Ada")
    wait(lambda: news().get("reached"))
    assert somebody_sends(desk)
    other = in_another_process(
        "import time\nfrom course_lib.classroom.learner.channel import start_channel\nfrom pathlib import Path\n"
        "start_channel(Path.cwd())\nprint('there', flush=True)\ntime.sleep(1000)",
        desk,
    )
    assert other.stdout.readline() == "there\n"
    mine = start_channel(desk)
    mine.stop()
    mine.join()
    wait(lambda: somebody_sends(desk))
    other.kill()
    other.wait()
    wait(lambda: not somebody_sends(desk))


def test_a_damaged_outbox_is_begun_anew(desk, small_class):
    (desk / FILE).write_bytes(b"this was a database" * 1000)
    join(*small_class.joining, "Ada")
    tell("showed", source="1")
    assert small_class.wait_for(1)


def test_two_that_find_a_damaged_outbox_at_once_share_the_new_one(desk, monkeypatch):
    (desk / FILE).parent.mkdir(exist_ok=True)
    (desk / FILE).write_bytes(b"this was a database" * 1000)
    really_open = outbox_module._opened

    def open_while_another_repairs_it(path):
        monkeypatch.setattr(outbox_module, "_opened", really_open)
        try:
            return really_open(path)
        except sqlite3.DatabaseError:
            with Outbox.of(desk) as other:
                other.put("1", {"id": "other"})
            raise

    monkeypatch.setattr(outbox_module, "_opened", open_while_another_repairs_it)
    with Outbox.of(desk) as outbox:
        outbox.put("1", {"id": "one"})
        assert [event["id"] for event in outbox.waiting("1")] == ["other", "one"]


def test_a_class_whose_desk_cannot_be_written_breaks_nothing(desk, small_class, monkeypatch):
    join(*small_class.joining, "Ada")

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(Outbox, "put", fail)
    assert tell("slower") == ""


def test_an_outbox_that_nobody_empties_keeps_the_newest(desk, monkeypatch):
    monkeypatch.setattr("course_lib.classroom.learner.outbox.MOST_WAITING", 10)
    with Outbox.of(desk) as outbox:
        for number in range(25):
            outbox.put("1", {"id": str(number)})
        assert [event["id"] for event in outbox.waiting("1")] == [str(number) for number in range(15, 25)]


@pytest.mark.parametrize("variable", ["PYTEST_CURRENT_TEST", "NBGRADER_EXECUTION"])
def test_whoever_runs_notebooks_to_test_or_grade_them_tells_nothing(desk, small_class, variable):
    join(*small_class.joining, "Ada")
    told = in_another_process(f"{TELL}\nprint([tell('slower')])", desk, **{variable: "autograde"})
    assert told.communicate()[0] == "['']\n"


def test_a_desk_that_joins_another_class_tells_it_nothing_of_the_first(desk, small_class, tmp_path_factory):
    class_file.Membership(f"http://127.0.0.1:{free_port()}", "learner-1", "s", "Yesterday's class").write(desk)
    tell("showed", source="yesterday")
    assert waiting(desk) == ["showed"]
    leave()
    join(*small_class.joining, "Ada")
    tell("showed", source="today")
    assert [event["source"] for event in small_class.wait_for(1)] == ["today"]
