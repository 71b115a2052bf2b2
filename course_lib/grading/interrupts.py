"""Handle Ctrl-C while grading: everything ends within two seconds, and no process is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

from course_lib.grading import end_all


@contextlib.contextmanager
def ended_by_an_interrupt(sentence: str) -> Iterator[None]:
    """Within the block, Ctrl-C prints a message and ends this program and every process it has started.

    We do not raise KeyboardInterrupt: an import could swallow it, it could block on a thread that waits for ranks, and
    other threads would go on starting processes. Instead, this process execs `end_all`. Result files stay intact,
    because they are written to a temporary file and renamed.
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
    """Return glob patterns of the cgroups that this program has made, if any."""
    cgroups = sys.modules.get("course_lib.grading.cgroups")
    return cgroups.own_groups() if cgroups else []


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[str]:
    """Use one folder for all temporary files of this program and its children, so that it can be removed at once."""
    before, usual = os.environ.get("TMPDIR"), tempfile.tempdir
    folder = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="course_lib-")
    try:
        yield folder
    finally:
        tempfile.tempdir = usual
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        if any(Path(folder).glob("pymp-*")):  # multiprocessing's, which removes it when this program ends
            util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _inherit_orphans() -> None:
    """Make orphans of our children become children of this process, so that we can find and kill them."""
    if sys.platform.startswith("linux"):
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
