"""Confine a rank to its own folder: it can write nowhere else, and it cannot see the folders of other ranks.

The ranks of a submission run as one user in one sandbox. Without this, they could exchange files in /tmp, and no meter
would count that. Landlock, in Linux since 5.13, lets a process give up rights for good; it needs no privileges.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CREATE, ADD, RESTRICT = 444, 445, 446  # system calls, with the same numbers on all machines
NO_NEW_PRIVILEGES = 38
EXECUTE, WRITE, READ, LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
FIRST = (1 << 13) - 1  # all rights of version 1: the four above, and those to create and remove things
REFER, TRUNCATE = 1 << 13, 1 << 14  # added in versions 2 and 3
SCOPED = 0b11  # added in version 6: signals and abstract Unix sockets cannot reach processes outside
SHARED = ("tmp",)  # folders below / that everybody can write to


def version() -> int:
    """Return the kernel's version of Landlock, or 0 if it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, ctypes.CDLL(None).syscall(CREATE, None, 0, 1))


def keep_to_own_folder(*files: str) -> bool:
    """Create a temporary folder and give up all rights to write elsewhere, for this thread and everything it starts.

    `files`, which must exist, can still be read and written, and open files stay open. Returns whether the kernel
    supports this.
    """
    known = version()
    if not known:
        return False
    own = tempfile.mkdtemp()
    rights = FIRST | (REFER if known >= 2 else 0) | (TRUNCATE if known >= 3 else 0)
    attributes = struct.pack("=QQQ", rights, 0, SCOPED)[: 8 if known < 4 else 16 if known < 6 else 24]
    libc = ctypes.CDLL(None, use_errno=True)
    ruleset = _checked(libc.syscall(CREATE, attributes, len(attributes), 0))
    try:
        _allow(libc, ruleset, own, rights)
        _allow(libc, ruleset, os.devnull, READ | WRITE)
        for file in files:
            _allow(libc, ruleset, file, READ | WRITE | (TRUNCATE & rights))
        for folder in _readable():
            _allow(libc, ruleset, folder, EXECUTE | READ | (LIST if os.path.isdir(folder) else 0))
        _checked(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _checked(libc.syscall(RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)
    os.environ["TMPDIR"] = os.environ["HOME"] = tempfile.tempdir = own
    os.chdir(own)
    return True


def _readable() -> Iterator[str]:
    """Yield what may be read: everything in / except shared folders, and Python, which may be inside one of those."""
    yield from (f"/{name}" for name in os.listdir("/") if name not in SHARED)
    yield from {sys.prefix, sys.base_prefix, *(folder for folder in sys.path if Path(folder).is_absolute())}


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            _checked(libc.syscall(ADD, ruleset, 1, struct.pack("=Qi", rights, descriptor), 0))
        finally:
            os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
