"""Ctrl-C while a class is graded: at any moment, an end within two seconds, and nothing left of what was started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from course_lib.grading import end_all
from course_lib.launchers.process.folders import temporary_folder


@contextlib.contextmanager
def ended_by_an_interrupt(sentence: str) -> Iterator[None]:
    """In the block, Ctrl-C ends this program and all that it has started, with a sentence.

    No exception is raised for it: one could be swallowed in the middle of an import, or wait for a thread that waits
    for ranks, and threads go on and start the next process. Instead this process becomes another program, `end_all`.
    What has been written is whole, because all results are written aside and renamed.
    """
    with _own_temporary_folder() as folder:
        in_charge = threading.current_thread() is threading.main_thread()
        if not in_charge or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def leave(*_: Any) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.write(2, f"\ncourse: interrupted; {sentence}\n".encode())
            os.execv(sys.executable, [sys.executable, "-I", "-S", end_all.__file__, folder, *_groups()])

        _inherit_orphans()
        signal.signal(signal.SIGINT, leave)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _groups() -> list[str]:
    """Patterns of the kernel's groups of what this program has started, if any were made by now."""
    cgroups = sys.modules.get("course_lib.grading.cgroups")
    return cgroups.own_groups() if cgroups else []


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
