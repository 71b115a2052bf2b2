"""What a rank records besides its spans: when it entered each collective, and what PyTorch's profiler saw.

We ask rank 0 for the time to find out how far apart the machines' clocks are. Exposed communication is the time in
which a rank's messages are in flight and it computes nothing. That includes the time it waits for a slower rank.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from course_lib.launchers.diagnosis.record import Call
from course_lib.trace import Span

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


QUESTIONS = 10  # per machine: the fastest answer is the most accurate


def clock_skew(store: Store, clock: Callable[[], float] = time.time) -> float:
    """Return the seconds to add to this machine's wall clock to get rank 0's. Every rank must call it.

    The first rank of each machine asks rank 0 several times. For the fastest answer, it assumes that both directions
    took equally long, so the skew is off by at most half of the round trip. The questions go through the store, because
    with NCCL a message between two ranks would first set up a communicator.
    """
    machine, machines = int(os.environ.get("GROUP_RANK", "0")), int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    first_here = os.environ.get("LOCAL_RANK", "0") == "0"
    if machines <= 1:
        return 0.0
    if machine == 0:
        if first_here:
            _answer(store, machines, clock)
        return 0.0
    if first_here:
        store.set(f"skew/{machine}", repr(_ask(store, machine, clock)))
    return float(store.get(f"skew/{machine}"))


def _answer(store: Store, machines: int, clock: Callable[[], float]) -> None:
    for machine in range(1, machines):
        for number in range(QUESTIONS):
            store.get(f"skew/{machine}/question/{number}")
            store.set(f"skew/{machine}/answer/{number}", repr(clock()))


def _ask(store: Store, machine: int, clock: Callable[[], float]) -> float:
    answers = []
    for number in range(QUESTIONS):
        asked = clock()
        store.set(f"skew/{machine}/question/{number}", "?")
        there = float(store.get(f"skew/{machine}/answer/{number}"))
        answered = clock()
        answers.append((answered - asked, there - (asked + answered) / 2))
    return min(answers[1:])[1]  # the first question may have waited for rank 0 to answer other machines


@dataclass(frozen=True)
class Collective:
    """The `number`-th collective of a process group, with the times (in seconds) at which one rank entered and left it.

    `end` is None if we did not see the end: DistributedDataParallel waits for its buckets in C++.
    """

    rank: int
    group: str
    number: int
    op: str
    start: float
    end: float | None = None
    text: str = ""  # a description for people

    @property
    def key(self) -> tuple[str, int]:
        """A key that is the same on every rank that takes part."""
        return self.group, self.number

    def since(self, zero: float) -> Collective:
        """Return the same collective with times relative to `zero`."""
        return replace(self, start=self.start - zero, end=None if self.end is None else self.end - zero)


@dataclass(frozen=True)
class Profile:
    """What PyTorch's profiler recorded on one rank: trace events, in microseconds since `zero`, which is in seconds."""

    rank: int
    zero: float
    packed: bytes = field(repr=False)

    def since(self, zero: float) -> Profile:
        """Return the same profile with times relative to `zero`."""
        return replace(self, zero=self.zero - zero)

    @classmethod
    def pack(cls, rank: int, zero: float, events: Sequence[dict[str, Any]]) -> Profile:
        """Return a profile with compressed events, small enough to send."""
        return cls(rank, zero, zlib.compress(json.dumps(events).encode()))

    def events(self) -> list[dict[str, Any]]:
        """Return the events as the profiler wrote them, with `ts` relative to `zero`."""
        return json.loads(zlib.decompress(self.packed))


def collectives_of(rank: int, calls: Sequence[Call]) -> list[Collective]:
    """Return the calls that the flight recorder timed, with times on the clock of `time.monotonic()`."""
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
    """Return the events without arrows that are incomplete or point back in time.

    Some start before the profiler was on, and a GPU's clock is known less precisely than its host's.
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
    """Return wall-clock time minus monotonic time on this machine, from the best of several readings."""
    looks = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(5)]
    before, wall, after = min(looks, key=lambda look: look[2] - look[0])
    return wall - (before + after) / 2


EXPOSED = "exposed communication"
SHORTEST_GAP = 1e-4  # seconds: shorter gaps count as computing, because Python needs that long between two calls
NCCL_KERNEL = re.compile(r"nccl\w*Kernel_(?:[a-z]+_)?([A-Za-z]+)")

Interval = tuple[float, float]


def exposed_communication(profile: Profile) -> list[Span]:
    """Return the spans in which this rank communicates and does not compute, labeled with the operation.

    Over gloo, a message is in flight from the call to its end; over NCCL, while its kernel runs.
    """
    messages, kernels, operators = [], [], []
    for event in profile.events():
        if event["ph"] != "X":
            continue
        start = profile.zero + event["ts"] / 1e6
        interval = start, start + event.get("dur", 0.0) / 1e6
        if op := operation_of(event):
            messages.append((*interval, op))
        elif event.get("cat") == "kernel":
            kernels.append(interval)
        elif event.get("cat") == "cpu_op" and event["name"].startswith("aten::"):
            operators.append(interval)
    computing = list(joined(kernels or operators, SHORTEST_GAP))
    return [
        Span(profile.rank, EXPOSED, start, end, label=op)
        for start, end, op in one_at_a_time(messages)
        for start, end in without((start, end), computing)
        if end - start > SHORTEST_GAP
    ]


def operation_of(event: dict[str, Any]) -> str:
    """Return which collective or message a profiler event is, or "" if it is neither."""
    name = str(event["name"])
    if event.get("cat") == "user_annotation" and name.startswith("gloo:"):
        return name.removeprefix("gloo:")
    if event.get("cat") == "kernel" and (found := NCCL_KERNEL.match(name)):
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found.group(1)).lower()
    return ""


def joined(intervals: Iterable[Interval], gap: float = 0.0) -> Iterator[Interval]:
    """Merge intervals that overlap or are at most `gap` apart."""
    under_way: Interval | None = None
    for start, end in sorted(intervals):
        if under_way is None or start > under_way[1] + gap:
            if under_way is not None:
                yield under_way
            under_way = start, end
        else:
            under_way = under_way[0], max(under_way[1], end)
    if under_way is not None:
        yield under_way


def one_at_a_time(messages: Iterable[tuple[float, float, str]]) -> Iterator[tuple[float, float, str]]:
    """Yield the messages without overlaps: time in which several are in flight counts for the first of them."""
    counted = float("-inf")
    for start, end, op in sorted(messages):
        if end > counted:
            yield max(start, counted), end, op
            counted = end


def without(interval: Interval, others: list[Interval]) -> Iterator[Interval]:
    """Yield what is left of `interval` without `others`, which must be sorted and disjoint."""
    start, end = interval
    for low, high in others:
        if high <= start:
            continue
        if low >= end:
            break
        if low > start:
            yield start, low
        start = high
    if start < end:
        yield start, end
