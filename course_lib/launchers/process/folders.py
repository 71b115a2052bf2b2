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
HURRY_FILE = "COURSE_LIB_HURRY_FILE"  # in the environment of the server that ranks are forked from
MAX_AGE = 86_400.0  # seconds: a folder without a lock file may belong to an older version of this library


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a folder that is removed when the block ends, even on error. After a kill, the next launch removes it."""
    folder = tempfile.mkdtemp(prefix=PREFIX)
    try:
        with locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Lock the folder: it is in use as long as this process, or one forked from it, lives."""
    with open(Path(folder, LOCK), "w") as file:
        _lock(file)
        yield


def use_own_folder() -> None:
    """Make `multiprocessing` put its sockets in a folder that is cleaned up even if this process is killed.

    Otherwise it creates a `pymp-...` folder, and there is no way to tell whether one of those is still in use.
    """
    configuration = private_doors.process_configuration()
    if sys.platform == "win32" or configuration.get("tempdir") is not None:
        return
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=_short_folder())
    lock = locked(folder)
    lock.__enter__()  # until the process ends
    configuration["tempdir"] = folder
    last = -100  # after everything that might still have a file there
    util.Finalize(None, _forget, args=(folder, lock), exitpriority=last)


@contextlib.contextmanager
def hurry_file_named() -> Iterator[None]:
    """Pass the path of the hurry file to a server that is started in this block."""
    os.environ[HURRY_FILE] = str(_hurry_file())
    try:
        yield
    finally:
        os.environ.pop(HURRY_FILE, None)


@contextlib.contextmanager
def hurried() -> Iterator[None]:
    """Inside this block, the server that ranks are forked from forks before it has imported everything."""
    use_own_folder()
    file = _hurry_file()
    with contextlib.suppress(OSError):
        file.touch()
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _hurry_file() -> Path:
    return Path(util.get_temp_dir(), "hurry")


def _short_folder() -> str:
    """Return the folder for temporary files, or /tmp if its path is too long to hold a socket."""
    usual = tempfile.gettempdir()
    fits = len(os.fsencode(usual)) <= MAX_PATH
    return usual if fits or not os.access("/tmp", os.W_OK) else "/tmp"


def _forget(folder: str, lock: contextlib.AbstractContextManager[None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.__exit__(None, None, None)
    private_doors.process_configuration()["tempdir"] = None


def sweep_temporary_folders() -> None:
    """Remove the folders that are no longer in use."""
    if sys.platform == "win32":
        return
    for parent in {tempfile.gettempdir(), _short_folder()}:
        with contextlib.suppress(OSError), os.scandir(parent) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.name.startswith(PREFIX) and _is_ours(entry) and not _in_use(Path(entry.path)):
                        shutil.rmtree(entry.path, ignore_errors=True)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return whether this is a real folder, owned by this user, and not brand-new."""
    info = entry.stat(follow_symlinks=False)
    return entry.is_dir(follow_symlinks=False) and info.st_uid == os.getuid() and time.time() - info.st_mtime > MIN_AGE


def _in_use(folder: Path) -> bool:
    try:
        with open(folder / LOCK, "r+") as file:
            return not _lock(file)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime < MAX_AGE


def _lock(file: IO[str]) -> bool:
    """Try to lock the file without waiting, and return whether that worked."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
