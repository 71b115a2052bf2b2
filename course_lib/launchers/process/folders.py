"""Temporary folders for launches, and cleanup of those left behind by launches that were killed.

A process that uses a folder holds a lock on a file in it, and the lock ends with the process, even if it is killed.
A folder of ours that is not locked is a leftover, and the next launch removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import IO

from course_lib.launchers import private_doors

PREFIX = "course_lib-"
LOCK = "in_use"
MIN_AGE = 60.0  # seconds: a brand-new folder may not be locked yet
MAX_PATH = 55  # bytes: a socket's path may have 108, and we append about 40


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a folder that is removed when the block ends, even on error. After a kill, the next launch removes it."""
    folder = tempfile.mkdtemp(prefix=PREFIX)
    try:
        with open(Path(folder, LOCK), "w") as file:
            _lock(file)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def use_own_folder() -> None:
    """Make `multiprocessing` put its sockets in a folder that is cleaned up even if this process is killed.

    Otherwise it creates a `pymp-...` folder, and there is no way to tell whether one of those is still in use.
    """
    configuration = private_doors.process_configuration()
    if sys.platform == "win32" or configuration.get("tempdir") is not None:
        return
    folder = configuration["tempdir"] = tempfile.mkdtemp(prefix=PREFIX, dir=_short_folder())
    file = open(Path(folder, LOCK), "w")  # noqa: SIM115  (open until the process ends)
    _lock(file)

    def forget() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        file.close()
        configuration["tempdir"] = None

    util.Finalize(None, forget, exitpriority=-100)  # after everything that might still have a file there


def sweep_temporary_folders() -> None:
    """Remove the folders that no process uses any more."""
    if sys.platform == "win32":
        return
    for parent in {tempfile.gettempdir(), _short_folder()}:
        for folder in Path(parent).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # not ours to open, or without a lock
                info = folder.lstat()
                if info.st_uid == os.getuid() and time.time() - info.st_mtime >= MIN_AGE and not folder.is_symlink():
                    with open(folder / LOCK, "r+") as file:
                        if _lock(file):
                            shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> str:
    """Return the folder for temporary files, or /tmp if its path is too long to hold a socket."""
    usual = tempfile.gettempdir()
    fits = len(os.fsencode(usual)) <= MAX_PATH
    return usual if fits or not os.access("/tmp", os.W_OK) else "/tmp"


def _lock(file: IO[str]) -> bool:
    """Try to lock the file without waiting, and return whether that worked."""
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
