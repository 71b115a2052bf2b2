"""Ctrl-C while a class is graded, at any moment: a sentence within two seconds, and nothing left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.checks.class_of import ROOT, SOLUTION, hand_in, need_a_sandbox, with_answers
from tests.checks.under_load import busy
from tests.conftest import MARK, PATIENCE

pytestmark = pytest.mark.slow

HANGS = "def evaluate_together(total, count):\n    while dist.get_rank() == 0: pass\n    dist.barrier()"
WRONG = "def average_gradients(model):\n    for p in model.parameters():\n        dist.all_reduce(p.grad)"


def hand_in_a_class(folder: Path) -> None:
    """Right, wrong, and never coming to an end."""
    for number in range(4):
        hand_in(folder / "in", f"right{number}", SOLUTION)
        hand_in(folder / "in", f"wrong{number}", with_answers(_1=WRONG))
        hand_in(folder / "in", f"stuck{number}", with_answers(_3=HANGS))


def interrupt_after(seconds: float, folder: Path) -> tuple[float, str, list[str]]:
    """Start to grade, press Ctrl-C after so many seconds: how long it took then, what was said, what is left."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "course_lib", "grade", "in", "--out", "grades", "--jobs", "4", "--again"]
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")}
    started = subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    time.sleep(seconds)
    began = time.monotonic()
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does: to all in its foreground
    said = started.stderr.read()
    assert started.wait(PATIENCE) in (130, 0), said
    return time.monotonic() - began, said, family_of(mark, started.pid)


def family_of(mark: str, session: int) -> list[str]:
    """Processes that have this mark in their environment, or were started in this session, dead or alive."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, _, its_session = (place / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session or f"{MARK}={mark}".encode() in (place / "environ").read_bytes():
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{place.name} ({state}, child of {parent}): {command[:300]}")
        except (OSError, ValueError):
            continue
    return found


def check_an_interrupt(seconds: float, folder: Path, worst: float) -> float:
    waited, said, left = interrupt_after(seconds, folder)
    where = f"after {seconds:.2f} s: waited {waited:.2f} s, said {said!r}"
    assert waited < worst, where
    assert "Traceback" not in said, where
    assert not left, f"{where}, left {left}"
    assert not list((folder / "tmp").glob("*")), where
    assert "course: interrupted" in said or "100%" in said, where
    return waited


def random_interrupts(folder: Path, count: int, worst: float = PATIENCE) -> float:
    """The longest wait of so many interrupts beside four spinning processes."""
    (folder / "tmp").mkdir()
    hand_in_a_class(folder)
    moments = [random.Random(15 + number).uniform(0.3, 25.0) for number in range(count)]
    with busy():
        return max(check_an_interrupt(seconds, folder, worst) for seconds in moments)


@pytest.mark.parametrize("seconds", [0.4, 3.0, 7.0])
def test_an_interrupt_ends_everything_with_a_sentence(tmp_path, seconds):
    """The quick neighbor of forty random moments."""
    need_a_sandbox()
    (tmp_path / "tmp").mkdir()
    hand_in_a_class(tmp_path)
    check_an_interrupt(seconds, tmp_path, worst=PATIENCE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_interrupt_at_random_moments_on_a_busy_machine_ends_everything(tmp_path):
    need_a_sandbox()
    random_interrupts(tmp_path, 5, worst=PATIENCE)
