"""How long to wait for processes on a machine that may be busy with something else: `WallTime` and `FairTime`.

In wall-clock time, a correct program takes ten times as long if ten others are running. So we count the CPU time that
it gets and the time it sleeps, and limit the wall-clock time only as a last resort. The numbers for a process and its
descendants come from /proc, on systems that have it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TICK = 0.25  # seconds between two measurements
AT_WORK = 0.1  # of a core: processes that use less, and don't wait for one, are asleep
BLIND = 4.0  # wall-clock seconds that count as one, on systems without /proc


class WallTime:
    """A limit in wall-clock seconds; None means no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def look_again_in(self) -> float | None:
        """Return the seconds after which to call `over` again, or None if there is no need."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def over(self) -> str:
        """Return the limit that was used up, as in `not finished after ...`, or "" if there is time left."""
        return f"{self._seconds:g} s" if self.look_again_in() == 0 else ""


@dataclass(frozen=True)
class Patience:
    """What processes may use: seconds in which they could have worked, CPU time, and wall-clock seconds."""

    seconds: float
    cpu: float
    longest: float

    @classmethod
    def with_ranks(cls, seconds: float, ranks: int) -> Patience:
        """Return the patience for an answer that runs on `ranks` ranks."""
        return cls(seconds, cpu=2 * (seconds + ranks), longest=30 * seconds)


class FairTime:
    """A limit on the seconds in which the machine let some processes work, or in which they slept.

    Each look adds the CPU time of the busiest process since the last one; or all of the time, if every thread slept.
    While a thread is runnable or waits for the disk, the time that it does not get is not its fault.
    """

    def __init__(
        self,
        patience: Patience,
        processes: Callable[[], Iterable[int]],
        cpu: Callable[[], float | None] | None = None,
    ) -> None:
        """`cpu` counts the CPU time of the group, including processes that have ended."""
        self.patience, self._processes, self._cpu_of_group = patience, processes, cpu or (lambda: None)
        self.seconds = self.cpu = 0.0
        self.slept = self._sleep = 0.0  # seconds of the longest sleep, and of the current one
        self._started_at = self._last = time.monotonic()
        self._used = self._cpu_seconds()
        self._used_before = sum(self._used.values())

    def _cpu_seconds(self) -> dict[int, float]:
        """Return the CPU time of each process, including its children that have ended."""
        second = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        return {pid: sum(map(int, stat(f"/proc/{pid}")[11:15])) / second for pid in self._processes()}

    def look_again_in(self) -> float:
        return TICK

    def over(self) -> str:
        now = time.monotonic()
        passed, self._last = now - self._last, now
        used = self._cpu_seconds()
        busiest = max((seconds - self._used.get(pid, 0.0) for pid, seconds in used.items()), default=0.0)
        asleep = busiest < AT_WORK * passed and not any(map(is_awake, used))
        self._sleep = self._sleep + passed if asleep else 0.0
        self.slept = max(self.slept, self._sleep)
        counted = passed if asleep else min(passed, max(0.0, busiest))
        self.seconds += counted if os.path.exists("/proc/self/stat") else passed / BLIND
        self.cpu = max(self.cpu, sum(used.values()) - self._used_before, self._cpu_of_group() or 0.0)
        self._used = used
        if self.cpu > self.patience.cpu:
            return f"{self.patience.cpu:g} s of CPU time"
        if self.seconds > self.patience.seconds:
            return f"{self.patience.seconds:g} s"
        if now - self._started_at > self.patience.longest:
            return f"{self.patience.longest:g} s on a busy machine"
        return ""


Deadline = WallTime | FairTime


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    pids: list[int] = []
    with contextlib.suppress(OSError):  # the process or one of its threads may end while we look
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                pids += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return pids


def descendants(pid: int) -> Iterator[int]:
    """Yield the children of a process, their children, and so on."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def family(pid: int) -> list[int]:
    """Return a process and all of its descendants."""
    return [pid, *descendants(pid)]


def stat(path: str) -> list[str]:
    """Return the fields of a process's or thread's `stat` file, from its state on; [] if it has ended."""
    with contextlib.suppress(OSError):  # the name in front of the state may contain any characters
        return Path(path, "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def is_awake(pid: int) -> bool:
    """Return whether a thread of this process is runnable (R), even if it waits for a core, or waits for a disk (D)."""
    with contextlib.suppress(OSError):
        return any(stat(f"/proc/{pid}/task/{task}")[:1] in (["R"], ["D"]) for task in os.listdir(f"/proc/{pid}/task"))
    return False
