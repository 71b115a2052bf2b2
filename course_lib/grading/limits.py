"""What one submission may use, and how much memory its processes use together."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from course_lib.launchers.process.patience import Patience

GIGABYTE = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    seconds: float = 60.0  # that it could have worked: what a busy machine takes does not count
    memory: int = 16 * GIGABYTE  # that a process may map: torch with CUDA maps several before it does anything
    total_memory: int = 4 * GIGABYTE  # in use, of all its processes together
    processes: int = 200
    disk: int = 64 << 20
    output: int = 32 << 20

    @property
    def patience(self) -> Patience:
        """Its time: on a processor, and, on the busiest machine, on the wall."""
        return Patience(self.seconds, cpu=2 * self.seconds, longest=10 * self.seconds)

    def of_resource(self) -> dict[str, int]:
        """Those that the kernel enforces, for every process of the submission."""
        return {
            "RLIMIT_AS": self.memory,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.disk,
            "RLIMIT_CORE": 0,
        }


SOCKET = 212_992  # bytes that may lie in one: the kernel's usual limit
SOCKETS = re.compile(r"^sockets: used (\d+)$", re.MULTILINE)


def uses_more_than(limit: int, pids: list[int]) -> bool:
    """Whether these processes use more: what several share counts once, and what may lie in their sockets counts.

    The quick sum counts it for each of them. Only where that is too much is the exact one asked for: the kernel goes
    through all pages for it.
    """
    sockets = sockets_of(pids[-1]) * SOCKET if pids else 0
    return sum(map(own_and_shared, pids)) + sockets > limit and sum(map(proportional, pids)) + sockets > limit


def own_and_shared(pid: int) -> int:
    """Bytes of a process that come from no file: its own, and shared ones."""
    return sum(_kilobytes(f"/proc/{pid}/status", name) for name in ("RssAnon", "RssShmem")) << 10


def proportional(pid: int) -> int:
    """The same, with its share of what it shares."""
    names = ("Pss_Anon", "Pss_Shmem")
    return sum(_kilobytes(f"/proc/{pid}/smaps_rollup", name) for name in names) << 10 or own_and_shared(pid)


def sockets_of(pid: int) -> int:
    """How many sockets there are in the network that a process is in, a sandbox's own."""
    if _network(pid) == _network(os.getpid()):
        return 0
    found = SOCKETS.search(_read(f"/proc/{pid}/net/sockstat"))
    return int(found[1]) if found else 0


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
