"""Temporary folders of launches, and of those that were killed before they could remove theirs.

Whoever uses a folder holds a lock on a file in it, and a lock ends with its process, however that ends. A folder of
ours on which nobody holds one is a leftover: the next launch removes it.
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
YOUNG = 60.0  # seconds: a folder that was made just now may not be locked yet
LONGEST_NAME = 55  # bytes: the name of a socket has 108, and ours lie some 40 deeper
OLD = 86_400.0  # one that has no lock at all may belong to an older version of this library


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder for the time of the block, also if it ends badly; after a kill, the next launch sweeps it away."""
    folder = tempfile.mkdtemp(prefix=PREFIX)
    try:
        with locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold the folder: it is in use as long as this process, or one that it forks, lives."""
    with open(Path(folder, LOCK), "w") as file:
        _lock(file)
        yield


def use_own_folder() -> None:
    """Let `multiprocessing` keep its sockets in a folder that is swept if this process is killed.

    It makes one of its own otherwise, `pymp-...`, that nobody can tell from one in use.
    """
    configuration = private_doors.process_configuration()
    if sys.platform == "win32" or configuration.get("tempdir") is not None:
        return
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=_short_folder())
    lock = locked(folder)
    lock.__enter__()  # until the process ends
    configuration["tempdir"] = folder
    last = -100  # after everything that may have a file there
    util.Finalize(None, _forget, args=(folder, lock), exitpriority=last)


def _short_folder() -> str:
    """Where temporary files go; elsewhere, if that has so long a name that a socket in it could have none."""
    usual = tempfile.gettempdir()
    fits = len(os.fsencode(usual)) <= LONGEST_NAME
    return usual if fits or not os.access("/tmp", os.W_OK) else "/tmp"


def _forget(folder: str, lock: contextlib.AbstractContextManager[None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.__exit__(None, None, None)
    private_doors.process_configuration()["tempdir"] = None


def sweep_temporary_folders() -> None:
    """Remove the folders that nobody uses any more."""
    if sys.platform == "win32":
        return
    for parent in {tempfile.gettempdir(), _short_folder()}:
        with contextlib.suppress(OSError), os.scandir(parent) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.name.startswith(PREFIX) and _is_ours(entry) and not _in_use(Path(entry.path)):
                        shutil.rmtree(entry.path, ignore_errors=True)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """A real folder of this user's own, that has been there for a while."""
    info = entry.stat(follow_symlinks=False)
    return entry.is_dir(follow_symlinks=False) and info.st_uid == os.getuid() and time.time() - info.st_mtime > YOUNG


def _in_use(folder: Path) -> bool:
    try:
        with open(folder / LOCK, "r+") as file:
            return not _lock(file)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime < OLD


def _lock(file: IO[str]) -> bool:
    """Whether the lock could be had at once."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
