"""Launches of many people on one machine: each waits its turn, and nobody can keep the others from theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.launchers.process import admission
from course_lib.launchers.process.admission import Ticket, reason_to_wait

ME, SOMEBODY, HOSTILE = 1000, 1001, 1002
MINE = Ticket(came=100, name="mine", owner=ME, ranks=4)
PLENTY = 1 << 40
LAUNCH = "from course_lib import launch\nprint('returned', list(launch(lambda: 7, ranks=1)))"
HOLD = """import sys
from pathlib import Path
from course_lib.launchers.process import admission
with admission._ticket(Path(sys.argv[1]), 2):
    print("held", flush=True)
    sys.stdin.read()
"""


def ticket(owner: int, ranks: int, came: int = 1) -> Ticket:
    return Ticket(came, f"{owner}-{came}", owner, ranks)


def test_a_launch_waits_while_those_ahead_fill_the_machine():
    ahead = [ticket(SOMEBODY, 4), ticket(ME, 4, came=2)]
    assert "8 ranks of other launches are ahead" in reason_to_wait([*ahead, MINE], MINE, 10, PLENTY)
    assert reason_to_wait([*ahead, MINE], MINE, 12, PLENTY) == ""


def test_nobody_waits_for_a_launch_that_came_later():
    later = ticket(ME, 60, came=101)
    assert reason_to_wait([MINE, later], MINE, 8, PLENTY) == ""


def test_a_launch_that_is_larger_than_the_room_runs_alone():
    large = Ticket(100, "large", ME, 16)
    assert reason_to_wait([large], large, 8, PLENTY) == ""
    assert reason_to_wait([ticket(SOMEBODY, 1), large], large, 8, PLENTY) != ""


def test_a_user_with_a_thousand_launches_leaves_half_the_room():
    many = [ticket(HOSTILE, 64, came) for came in range(99)]
    assert reason_to_wait([*many, MINE], MINE, 8, PLENTY) == ""


def test_without_free_memory_a_launch_waits_for_those_that_run():
    told = reason_to_wait([ticket(SOMEBODY, 1), MINE], MINE, 64, 100 << 20)
    assert told == f"100 MB are free here, and 4 ranks need {4 * admission.RANK_MEMORY >> 20}"
    assert reason_to_wait([MINE], MINE, 64, 100 << 20) == ""  # nobody will make room


def test_what_is_no_launch_does_not_count(folder: Path):
    (folder / f"64-{'a' * 32}").write_text("a file")
    (folder / f"64-{'b' * 32}").symlink_to("/run/somewhere")
    (folder / "nonsense").mkdir()
    with admission._ticket(folder, 3):
        assert [one.ranks for one in admission._tickets(folder)] == [3]
    assert admission._tickets(folder) == []
    assert len(list(folder.iterdir())) == 3


def test_off_without_a_folder_that_can_be_used(monkeypatch, tmp_path):
    monkeypatch.delenv(admission.FOLDER, raising=False)
    with admission.admitted(4):
        pass
    monkeypatch.setenv(admission.FOLDER, str(tmp_path / "nowhere"))
    with admission.admitted(4):
        pass


@pytest.mark.slow
def test_a_launch_waits_with_a_line_and_starts_when_there_is_room(folder: Path):
    with admission._ticket(folder, 2):
        launching = start(LAUNCH, folder)
        assert first_line(launching).startswith("[launch] waiting for memory: 2 ranks of other launches are ahead")
    out, errors = launching.communicate(timeout=300)
    assert "returned [7]" in out, errors
    assert list(folder.iterdir()) == []


def test_a_launch_that_waits_can_be_interrupted(folder: Path):
    with admission._ticket(folder, 2):
        launching = start(LAUNCH, folder)
        first_line(launching)
        launching.send_signal(signal.SIGINT)
        _, errors = launching.communicate(timeout=300)
        assert "Interrupted" in errors
        assert len(list(folder.iterdir())) == 1


def test_a_launch_that_was_killed_holds_no_room(folder: Path):
    holding = start(HOLD, folder)
    assert first_line(holding) == "held\n"
    assert len(admission._tickets(folder)) == 1
    holding.kill()
    holding.wait()
    assert len(list(folder.iterdir())) == 1
    assert admission._tickets(folder) == []
    assert list(folder.iterdir()) == []


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short name: sockets lie in it."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="adm") as name:
        os.chmod(name, 0o1777)
        yield Path(name)


def start(program: str, folder: Path) -> subprocess.Popen[str]:
    limits = {admission.FOLDER: str(folder), admission.MOST: "2"}
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", program, str(folder)]
    return subprocess.Popen(words, env={**os.environ, **limits}, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
