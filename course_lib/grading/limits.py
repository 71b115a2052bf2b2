"""The limits of a submission, and a measure of the total memory of its processes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from course_lib.runtime.patience import Patience

GIGABYTE = 1 << 30


@dataclass(frozen=True)
class Limits:
    """The resources that one submission may use."""

    seconds: float = 60.0  # in which it could run: time lost to a busy machine does not count
    memory: int = 16 * GIGABYTE  # mapped per process: torch with CUDA maps several GB on import
    total_memory: int = 4 * GIGABYTE  # in use, over all processes
    processes: int = 200
    disk: int = 64 << 20
    output: int = 32 << 20
    lines: int = 100_000  # of output: an honest submission has one per case
    files: int = 8192  # open at a time, per process

    @property
    def patience(self) -> Patience:
        """The limits on its CPU time and, for a very busy machine, on its wall time."""
        return Patience(self.seconds, cpu=2 * self.seconds, longest=10 * self.seconds)

    def of_resource(self) -> dict[str, int]:
        """Return the limits that the kernel enforces on each process of the submission."""
        return {
            "RLIMIT_AS": self.memory,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.disk,
            "RLIMIT_NOFILE": self.files,
            "RLIMIT_CORE": 0,
        }


SOCKET = 212_992  # bytes that a socket may buffer: the kernel's default limit, for all but TCP
SOCKETS = re.compile(r"^sockets: used (\d+)$", re.MULTILINE)
QUEUES = re.compile(r"^ *\d+: \S+ \S+ [0-9A-F]{2} ([0-9A-F]{8}):([0-9A-F]{8}) ", re.MULTILINE)


def uses_more_than(limit: int, pids: list[int], counted: int | None = None) -> bool:
    """Whether these processes use more memory than `limit`. Shared memory counts once; socket buffers count, too.

    `counted` is the memory that a control group reports. Without one, the quick sum counts shared memory once per
    process. The exact sum makes the kernel walk all pages, so we compute it only if the quick sum exceeds the limit.
    """
    sockets = max(sockets_of(pids[-1]) * SOCKET, queued_in(pids[-1])) if pids else 0
    if counted is not None:
        return counted + sockets > limit
    return sum(map(own_and_shared, pids)) + sockets > limit and sum(map(proportional, pids)) + sockets > limit


def own_and_shared(pid: int) -> int:
    """Return the bytes of a process that no file backs: private and shared memory, including what was swapped out."""
    return sum(_kilobytes(f"/proc/{pid}/status", name) for name in ("RssAnon", "RssShmem", "VmSwap")) << 10


def proportional(pid: int) -> int:
    """Return the same, with only this process's proportional share of shared memory."""
    names = ("Pss_Anon", "Pss_Shmem", "SwapPss")
    return sum(_kilobytes(f"/proc/{pid}/smaps_rollup", name) for name in names) << 10 or own_and_shared(pid)


def sockets_of(pid: int) -> int:
    """Return the number of sockets in a process's network namespace; 0 if it is not a sandbox's."""
    if _network(pid) == _network(os.getpid()):
        return 0
    found = SOCKETS.search(_read(f"/proc/{pid}/net/sockstat"))
    return int(found[1]) if found else 0


def queued_in(pid: int) -> int:
    """Return the bytes queued in the TCP sockets of a process's network namespace; 0 if it is not a sandbox's.

    TCP sockets grow their buffers to megabytes on their own.
    """
    if _network(pid) == _network(os.getpid()):
        return 0
    tables = (_read(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6"))
    return sum(int(each, 16) for table in tables for queues in QUEUES.findall(table) for each in queues)


def _network(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _kilobytes(path: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _read(path), re.MULTILINE)
    return int(found[1]) if found else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
