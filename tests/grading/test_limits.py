"""Limits hold whatever a submission does: a trick with the clock, or memory in a place that nobody counts."""

from __future__ import annotations

import dataclasses
import platform

import pytest

from course_lib.checks.inside.runner import END, Submission
from course_lib.grading import cgroups, sandbox, seccomp
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


TCP_BUFFERS = """
import socket, time
server = socket.create_server(("127.0.0.1", 0), backlog=4000)
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
kept = []
while len(kept) < 4000:
    one = socket.create_connection(server.getsockname())
    other, _ = server.accept()
    one.setblocking(False)
    kept += [one, other]
    try:
        while True:
            one.send(bytes(1 << 16))
    except BlockingIOError:
        pass
time.sleep(1000)
"""


def test_memory_in_tcp_buffers_counts():
    need_a_sandbox()
    limits = dataclasses.replace(Limits(seconds=300), total_memory=1 << 30)
    assert sandbox.run(Submission([TCP_BUFFERS], [], timeout=5.0), limits).reason == "it used too much memory"


def test_memory_in_tcp_buffers_counts_without_a_control_group(monkeypatch):
    need_a_sandbox()
    monkeypatch.setattr(cgroups, "make_group", lambda *_: None)
    limits = dataclasses.replace(Limits(seconds=300), total_memory=1 << 30)
    assert sandbox.run(Submission([TCP_BUFFERS], [], timeout=5.0), limits).reason == "it used too much memory"
