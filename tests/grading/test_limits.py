"""Limits hold whatever a submission does: a trick with the clock, or memory in a place that nobody counts."""

from __future__ import annotations

import platform

import pytest

from course_lib.checks.inside.runner import END, Submission
from course_lib.grading import sandbox, seccomp
from course_lib.grading.limits import Limits
from tests.checks.class_of import need_a_sandbox

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

# The parent of a vfork is in the state of a wait for the disk, which does not count.
WAITS_LIKE_FOR_A_DISK = f"""
import ctypes, os, signal, subprocess, time
libc = ctypes.CDLL(None, use_errno=True)
number = {56 if platform.machine() == "x86_64" else 220}
for flags in (0x4000 | signal.SIGCHLD, 0x4100 | signal.SIGCHLD):
    child = libc.syscall(number, flags, 0, 0, 0, 0)
    if child == 0:
        libc._exit(7)
    assert child < 0, "a child for which the parent waits in the kernel"
assert subprocess.run(["true"]).returncode == 0  # falls back to fork
"""


def test_no_parent_waits_in_the_kernel_for_its_child(monkeypatch):
    need_a_sandbox()
    clone = Submission([WAITS_LIKE_FOR_A_DISK], [], timeout=5.0)
    assert sandbox.run(clone, Limits(seconds=600)).lines == [END]
    monkeypatch.setattr(seccomp, "NOT_CLONED", 0x7E02_0000)
    assert b'"AssertionError"' in sandbox.run(clone, Limits(seconds=600)).lines[0]


@pytest.mark.parametrize(("cell", "rested"), [("import time\ntime.sleep(9)", True), ("while True: pass", False)])
def test_sleep_is_told_from_work(cell, rested):
    need_a_sandbox()
    result = sandbox.run(Submission([cell], [], timeout=5.0), Limits(seconds=300))
    assert result.rested == rested
