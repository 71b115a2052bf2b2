"""Turn the errors of a machine that has run out of a resource into advice."""

from __future__ import annotations

import errno
import sys


class CannotStart(RuntimeError):
    """A rank or its supervisor cannot be started. The message says why and what to do."""


def explain_failure(error: BaseException) -> str:
    """Return what went wrong and what to do about it."""
    if isinstance(error, CannotStart):
        return str(error)
    if isinstance(error, MemoryError):
        return "this machine has too little memory: launch fewer ranks"
    number = getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE):
        return (
            f"too many open files{_limit('RLIMIT_NOFILE')}. The supervisor process needs five per rank: "
            "raise the limit (`ulimit -n 1024` before Jupyter is started), or launch fewer ranks"
        )
    if number == errno.EAGAIN:
        return (
            f"no more processes are allowed{_limit('RLIMIT_NPROC')}. Every rank has a process and some threads: raise "
            "the limit (`ulimit -u`, or the container's), close other programs, or launch fewer ranks"
        )
    if number == errno.ENOMEM:
        return "this machine has too little memory: launch fewer ranks"
    if number == errno.ENOSPC:
        return "the disk for temporary files is full: make room there, or set TMPDIR to a different folder"
    if "AF_UNIX path too long" in str(error):
        return "the name of the folder for temporary files is too long: set TMPDIR to one with a shorter name"
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return "there is no folder for temporary files: set TMPDIR to one that exists and can be written to"
    return f"{type(error).__name__}: {error}"


def _limit(name: str) -> str:
    """Return ` (64 are allowed)`, or "" if the system does not say."""
    if sys.platform == "win32":
        return ""
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return "" if soft == resource.RLIM_INFINITY else f" ({soft} are allowed)"
