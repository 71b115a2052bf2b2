"""What a rank brings home besides its spans: when it entered each collective, and what PyTorch's profiler saw."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from course_lib.launchers.diagnosis.call_log import Call


@dataclass(frozen=True)
class Collective:
    """The `number`-th collective of a process group, as one rank came to it and left it, in seconds.

    `end` is None where nobody saw the end: DistributedDataParallel waits for its buckets in C++.
    """

    rank: int
    group: str
    number: int
    op: str
    start: float
    end: float | None = None
    text: str = ""  # what it was of, for people

    @property
    def key(self) -> tuple[str, int]:
        """The same on every rank that takes part."""
        return self.group, self.number

    def since(self, zero: float) -> Collective:
        """The same, with times counted from `zero`."""
        return replace(self, start=self.start - zero, end=None if self.end is None else self.end - zero)


@dataclass(frozen=True)
class Profile:
    """What PyTorch's profiler recorded on one rank: trace events whose microseconds count from `zero` seconds."""

    rank: int
    zero: float
    packed: bytes = field(repr=False)

    def since(self, zero: float) -> Profile:
        """The same, with times counted from `zero`."""
        return replace(self, zero=self.zero - zero)

    @classmethod
    def pack(cls, rank: int, zero: float, events: Sequence[dict[str, Any]]) -> Profile:
        """A profile that is small enough to travel."""
        return cls(rank, zero, zlib.compress(json.dumps(events).encode()))

    def events(self) -> list[dict[str, Any]]:
        """The events as the profiler wrote them, their `ts` from `zero` on."""
        return json.loads(zlib.decompress(self.packed))


def collectives_of(rank: int, calls: Sequence[Call]) -> list[Collective]:
    """The calls that the flight recorder dated, in the time of `time.monotonic()`."""
    shift = wall_minus_monotonic()
    return [
        Collective(
            rank,
            call.group,
            call.number,
            call.op,
            call.began - shift,
            None if call.ended is None else max(call.began, call.ended) - shift,
            str(call),
        )
        for call in calls
        if call.began
    ]


def whole_arrows(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without arrows that lack an end, or lead back in time.

    Some began before the profiler looked; and the clock of a GPU is known less exactly than that of its host.
    """
    begins, ends = {}, {}
    for event in events:
        if event["ph"] == "s":
            begins[_arrow(event)] = event["ts"]
        elif event["ph"] in "tf":
            ends.setdefault(_arrow(event), []).append(event)
    whole = {
        key
        for key, arriving in ends.items()
        if key in begins and any(e["ph"] == "f" for e in arriving) and begins[key] <= min(e["ts"] for e in arriving)
    }
    return [event for event in events if event["ph"] not in "stf" or _arrow(event) in whole]


def _arrow(event: dict[str, Any]) -> tuple[Any, ...]:
    return event.get("cat"), event.get("name"), event.get("id")


def wall_minus_monotonic() -> float:
    """What to subtract from the time of day to get this machine's monotonic time: the best of several looks."""
    looks = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(5)]
    before, wall, after = min(looks, key=lambda look: look[2] - look[0])
    return wall - (before + after) / 2
