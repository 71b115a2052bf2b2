"""The processes that come from one, and what they have used: read from /proc, where a system has it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it may end, or a thread of it, while we look
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """The processes that come from this one, in any generation."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def family(pid: int) -> list[int]:
    """This process and all that come from it."""
    return [pid, *descendants(pid)]


def cpu_seconds(pid: int) -> float:
    """Processor time of this process, and of those of its children that have ended."""
    return sum(map(int, _fields(f"/proc/{pid}/stat")[11:15])) / _ticks()


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def state(thread: str) -> str:
    """What a thread, `/proc/PID/task/TID`, is at: R for able to run, D for the disk, S for asleep; "" if it is gone."""
    return next(iter(_fields(f"{thread}/stat")), "")


def run_and_delay(thread: str) -> tuple[float, float] | None:
    """Seconds that a thread has run, and those in which it could have run and was not given a core."""
    try:
        ran, delayed, _ = Path(f"{thread}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return int(ran) / 1e9, int(delayed) / 1e9


def threads(pid: int) -> list[str]:
    """The folders of a process's threads."""
    try:
        return [f"/proc/{pid}/task/{task}" for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _fields(path: str) -> list[str]:
    """The fields of a `stat` file behind the name, which may be of any characters."""
    try:
        return Path(path).read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
