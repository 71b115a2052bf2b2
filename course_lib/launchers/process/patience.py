"""How long to wait for processes on a machine that may be busy with something else.

On the wall's clock, an honest program takes ten times as long where ten others run. So what counts is the time that
it *could* have used: that in which one of its threads was able to run and was given no core, or waited for the disk,
does not count. Beside it, the processor time that it has used is limited, and, at last, the time on the wall. What the
processes of a family have used is read from /proc, where a system has it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


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


TICK = 0.25  # seconds between two looks
BLIND = 4.0  # where no system tells who waits for a core, so many seconds on the wall count as one


class Deadline(Protocol):
    """The end of a wait."""

    def look_again_in(self) -> float | None:
        """Seconds after which to ask again whether it is over; None for no need to ask."""

    def over(self) -> str:
        """What was used up, as in `not finished after ...`; "" if there is still time."""
        ...


class WallTime:
    """So many seconds on the wall's clock; None for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def look_again_in(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def over(self) -> str:
        return f"{self._seconds:g} s" if self.look_again_in() == 0 else ""


@dataclass(frozen=True)
class Patience:
    """What processes may use: seconds that they could have worked, processor time, seconds on the wall."""

    seconds: float
    cpu: float
    longest: float

    @classmethod
    def with_ranks(cls, seconds: float, ranks: int) -> Patience:
        """For an answer on so many ranks."""
        return cls(seconds, cpu=2 * (seconds + ranks), longest=30 * seconds)

    def times(self, factor: float) -> Patience:
        """The same, so many times as long."""
        return Patience(self.seconds * factor, self.cpu * factor, self.longest * factor)


class FairTime:
    """The patience with some processes, as it is used up."""

    def __init__(
        self,
        patience: Patience,
        processes: Callable[[], Iterable[int]],
        cpu: Callable[[], float | None] | None = None,
    ) -> None:
        self.patience, self.work = patience, WorkClock(processes)
        self._cpu = cpu or (lambda: None)  # somebody who counts those that are gone, too

    def look_again_in(self) -> float:
        return TICK

    def over(self) -> str:
        self.work.look()
        if max(self.work.cpu, self._cpu() or 0.0) > self.patience.cpu:
            return f"{self.patience.cpu:g} s of processor time"
        if self.work.seconds > self.patience.seconds:
            return f"{self.patience.seconds:g} s"
        if self.work.wall > self.patience.longest:
            return f"{self.patience.longest:g} s on a busy machine"
        return ""


class WorkClock:
    """Counts, look by look, the seconds in which some processes were not kept from working.

    A wait for a core is added to a thread's account when it is over. One that lasts is known by the thread's state:
    it could run, twice in a row, and has not. What was counted so is not counted again when it is over.
    """

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._began = self._last = time.monotonic()
        self._sees = Path("/proc/self/schedstat").exists()
        self._threads: dict[str, _Thread] = {}
        self._cpu_before: float | None = None
        self.seconds = self.cpu = self.wall = 0.0
        self._look_at_threads(0.0)

    def look(self) -> None:
        """Bring the numbers up to now."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        self.wall = now - self._began
        kept_from_it = self._look_at_threads(passed) if self._sees else passed * (1 - 1 / BLIND)
        self.seconds += max(0.0, passed - kept_from_it)

    def _look_at_threads(self, passed: float) -> float:
        """Seconds, of those that have passed, in which a thread was kept from its work."""
        processes, found, kept = list(self._processes()), {}, 0.0
        first = self._cpu_before is None
        for path in (thread for pid in processes for thread in threads(pid)):
            if account := run_and_delay(path):
                before = self._threads.get(path) or _Thread(*(account if first else (0.0, 0.0)))
                found[path], lost = before.after(*account, state(path), passed)
                kept += lost
        self._threads = found
        used = sum(map(cpu_seconds, processes))
        self._cpu_before = used if self._cpu_before is None else self._cpu_before
        self.cpu = max(self.cpu, used - self._cpu_before)
        return min(kept, passed)


@dataclass(frozen=True)
class _Thread:
    ran: float
    delayed: float
    state: str = ""
    in_advance: float = 0.0  # seconds of a wait that were counted before it was over

    def after(self, ran: float, delayed: float, state: str, passed: float) -> tuple[_Thread, float]:
        """The same thread some seconds later, and how many of them it was kept from its work."""
        grown = delayed - self.delayed
        lost, in_advance = max(0.0, grown - self.in_advance), max(0.0, self.in_advance - grown)
        waits = state == self.state and (state == "D" or (state == "R" and ran == self.ran))
        if waits and not grown:
            lost, in_advance = passed, in_advance + (passed if state == "R" else 0.0)
        return _Thread(ran, delayed, state, in_advance), lost
