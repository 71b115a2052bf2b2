"""Ctrl-C while a class is graded, at any moment: a sentence within two seconds, and nothing left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from course_lib.grading.limits import Limits
from tests.checks.class_of import ROOT, SOLUTION, busy, hand_in, need_a_sandbox, with_answers
from tests.conftest import MARK, PATIENCE

pytestmark = pytest.mark.slow

HANGS = "def evaluate_together(total, count):\n    while dist.get_rank() == 0: pass\n    dist.barrier()"
MOMENTS = [random.Random(15 + number).uniform(0.3, 25.0) for number in range(5)]
WRONG = "def average_gradients(model):\n    for p in model.parameters():\n        dist.all_reduce(p.grad)"


def hand_in_a_class(folder: Path) -> None:
    """Right, wrong, and never coming to an end."""
    for number in range(4):
        hand_in(folder / "in", f"right{number}", SOLUTION)
        hand_in(folder / "in", f"wrong{number}", with_answers(_1=WRONG))
        hand_in(folder / "in", f"stuck{number}", with_answers(_3=HANGS))


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


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seconds", "spinning"), [(0.4, 0), (3.0, 0), (7.0, 0), *((moment, 4) for moment in MOMENTS)])
def test_an_interrupt_ends_everything_with_a_sentence(tmp_path, seconds, spinning):
    need_a_sandbox()
    (tmp_path / "tmp").mkdir()
    hand_in_a_class(tmp_path)
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "course_lib", "grade", "in", "--out", "grades", "--jobs", "4"]
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")}
    with busy(spinning):
        started = subprocess.Popen(
            command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        time.sleep(seconds)
        began = time.monotonic()
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does: to all in its foreground
        said = started.stderr.read()
        assert started.wait(PATIENCE) in (130, 0), said
        waited, left = time.monotonic() - began, family_of(mark, started.pid)
    assert waited < Limits().seconds, f"it waited until the submissions' time was over, and said {said!r}"
    assert "Traceback" not in said
    assert not left
    assert not list((tmp_path / "tmp").glob("*"))
    assert "course: interrupted" in said or "100%" in said
    if "grading" in said and "100%" not in said:  # it had begun
        assert "run the same command again" in said
    for file in (tmp_path / "grades").glob("records/right*/*.json"):
        marks = json.loads(file.read_text())["marks"]
        assert sum(sum(mark["parts"].values()) for mark in marks) == 15, "whoever was interrupted has no record"
