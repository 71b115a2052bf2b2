"""How long to wait for processes on a machine that may be busy with something else.

In wall-clock time, a correct program takes ten times as long if ten others are running. So we count only the time it
*could* have used: time in which one of its threads was runnable but had no core, or was waiting for the disk, does not
count. We also limit the CPU time it uses and, as a last resort, the wall-clock time. The numbers for a process and its
descendants come from /proc, on systems that have it.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


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


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of its children that have ended."""
    ticks_per_second = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    return sum(map(int, _fields(f"/proc/{pid}/stat")[11:15])) / ticks_per_second


def state(thread: str) -> str:
    """Return the state of a thread, `/proc/PID/task/TID`: R for runnable, D for disk, S for asleep; "" if it ended."""
    return next(iter(_fields(f"{thread}/stat")), "")


def run_and_delay(thread: str) -> tuple[float, float] | None:
    """Return the seconds a thread has run, and the seconds it was runnable but had no core."""
    try:
        ran, delayed, _ = Path(f"{thread}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return int(ran) / 1e9, int(delayed) / 1e9


def threads(pid: int) -> list[str]:
    """Return the /proc folders of a process's threads."""
    try:
        return [f"/proc/{pid}/task/{task}" for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _fields(path: str) -> list[str]:
    """Return the fields of a `stat` file after the process name, which may contain any characters."""
    try:
        return Path(path).read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


TICK = 0.25  # seconds between two measurements
BLIND = 4.0  # wall-clock seconds that count as one, on systems that don't report waits for a core


class Deadline(Protocol):
    """A limit on how long to wait."""

    def look_again_in(self) -> float | None:
        """Return the seconds after which to call `over` again, or None if there is no need."""

    def over(self) -> str:
        """Return the limit that was used up, as in `not finished after ...`, or "" if there is time left."""
        ...


class WallTime:
    """A limit in wall-clock seconds; None means no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def look_again_in(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def over(self) -> str:
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

    def times(self, factor: float) -> Patience:
        """Return the same patience, `factor` times as long."""
        return Patience(self.seconds * factor, self.cpu * factor, self.longest * factor)


class FairTime:
    """A `Deadline` that tracks how much of a `Patience` some processes have used up."""

    def __init__(
        self,
        patience: Patience,
        processes: Callable[[], Iterable[int]],
        cpu: Callable[[], float | None] | None = None,
        most_disk: float = math.inf,
    ) -> None:
        self.patience, self.work = patience, WorkClock(processes, most_disk)
        self._cpu = cpu or (lambda: None)  # a count that includes processes that have ended

    def look_again_in(self) -> float:
        return TICK

    def over(self) -> str:
        self.work.look()
        if max(self.work.cpu, self._cpu() or 0.0) > self.patience.cpu:
            return f"{self.patience.cpu:g} s of CPU time"
        if self.work.seconds > self.patience.seconds:
            return f"{self.patience.seconds:g} s"
        if self.work.wall > self.patience.longest:
            return f"{self.patience.longest:g} s on a busy machine"
        return ""


class WorkClock:
    """Samples processes to count the seconds in which the machine let them work.

    The kernel adds a wait for a core to a thread's account when the wait ends. A wait in progress shows in the thread's
    state: runnable in two samples in a row, without having run. We do not count it again when it ends. If a wait turns
    out to have begun in an earlier interval, which we counted as work, we take that part back.
    """

    def __init__(self, processes: Callable[[], Iterable[int]], most_disk: float = math.inf) -> None:
        self._processes = processes
        self._disk_left = most_disk  # seconds: a process that waits longer for the disk does so on purpose
        self._started_at = self._last = time.monotonic()
        self._sees = Path("/proc/self/schedstat").exists()
        self._threads: dict[str, _Thread] = {}
        self._cpu_before: float | None = None
        self.seconds = self.cpu = self.wall = 0.0
        self._look_at_threads(0.0)

    def look(self) -> None:
        """Update the numbers."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        self.wall = now - self._started_at
        delayed = self._look_at_threads(passed) if self._sees else passed * (1 - 1 / BLIND)
        self.seconds = max(0.0, self.seconds + passed - delayed)

    def _look_at_threads(self, passed: float) -> float:
        """Return for how many of the `passed` seconds, and of those before, a thread was kept from working."""
        processes, seen_threads, delayed, disk_delay, earlier = list(self._processes()), {}, 0.0, 0.0, 0.0
        first = self._cpu_before is None
        for path in (thread for pid in processes for thread in threads(pid)):
            if times := run_and_delay(path):
                before = self._threads.get(path) or _Thread(*(times if first else (0.0, 0.0)))
                seen_threads[path], delay = before.after(*times, state(path), passed)
                delayed += delay if seen_threads[path].state != "D" or self._disk_left > 0 else 0.0
                disk_delay = max(disk_delay, delay if seen_threads[path].state == "D" else 0.0)
                earlier = max(earlier, delay - passed if path in self._threads else 0.0)
        self._disk_left -= disk_delay
        self._threads = seen_threads
        cpu = sum(map(cpu_seconds, processes))
        self._cpu_before = cpu if self._cpu_before is None else self._cpu_before
        self.cpu = max(self.cpu, cpu - self._cpu_before)
        return min(delayed, passed) + earlier


@dataclass(frozen=True)
class _Thread:
    ran: float
    delayed: float
    state: str = ""
    in_advance: float = 0.0  # seconds of a wait that we counted before it ended

    def after(self, ran: float, delayed: float, state: str, passed: float) -> tuple[_Thread, float]:
        """Return the same thread `passed` seconds later, and how many of those it was kept from working."""
        grown = delayed - self.delayed
        delay, in_advance = max(0.0, grown - self.in_advance), max(0.0, self.in_advance - grown)
        waits = state == self.state and (state == "D" or (state == "R" and ran == self.ran))
        if waits and not grown:
            delay, in_advance = passed, in_advance + (passed if state == "R" else 0.0)
        return _Thread(ran, delayed, state, in_advance), delay
