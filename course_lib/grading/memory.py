"""The memory of several processes together, where no group of the kernel's counts it."""

from __future__ import annotations

import os
import re
from pathlib import Path

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
