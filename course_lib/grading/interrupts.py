"""Ctrl-C while a class is graded: at any moment, an end within two seconds, and nothing left of what was started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from course_lib.launchers.process.family import descendants
from course_lib.launchers.process.folders import temporary_folder

END_WITHIN = 1.5  # seconds for what was started


@contextlib.contextmanager
def ended_by_an_interrupt(sentence: str) -> Iterator[None]:
    """In the block, Ctrl-C ends this program and all that it has started, with a sentence.

    No exception is raised for it: one could be swallowed in the middle of an import, or wait for a thread that waits
    for ranks. What has been written is whole, because all results are written aside and renamed.
    """
    with _own_temporary_folder() as folder:
        in_charge = threading.current_thread() is threading.main_thread()
        if not in_charge or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def leave(*_: Any) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.write(2, f"\ncourse: interrupted; {sentence}\n".encode())
            end_descendants()
            _remove_groups()
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(130)

        _inherit_orphans()
        signal.signal(signal.SIGINT, leave)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def end_descendants() -> None:
    """Kill every process that comes from this one, and take note of its end."""
    deadline = time.monotonic() + END_WITHIN
    while (left := list(descendants(os.getpid()))) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def _remove_groups() -> None:
    """The kernel's groups of what has been ended, if any were made by now."""
    if cgroups := sys.modules.get("course_lib.grading.cgroups"):
        cgroups.sweep_groups(own=True)


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[str]:
    """A folder for all temporary files of this program and of what it starts: it can be removed as a whole."""
    before, usual = os.environ.get("TMPDIR"), tempfile.tempdir
    with temporary_folder() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield folder
        finally:
            tempfile.tempdir = usual
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before


def _inherit_orphans() -> None:
    """What a process of ours leaves behind becomes a child of this one, and is found."""
    if sys.platform.startswith("linux"):
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
