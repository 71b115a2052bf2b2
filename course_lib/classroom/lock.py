"""A lock that one process holds until it ends, on every operating system."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path


def hold_lock(path: Path, patience: float = 0) -> sqlite3.Connection | None:
    """Return the lock on a file, or None if someone else holds it for longer than `patience` seconds.

    Closing it, or the end of the process, releases it. SQLite locks files on Windows, too, where there is no `flock`.
    The file stays empty; only its owner can read it.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    lock = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        if "locked" in str(error):
            return None
        raise  # the disk is full, or may not be written
    return lock
