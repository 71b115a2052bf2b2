"""What a rank brings home besides its spans: when it entered each collective, and what PyTorch's profiler saw.

Asking rank 0 for the time tells how far apart the clocks of the machines are. Exposed communication is the time in
which a rank's messages are under way and it computes nothing. A rank that waits for a slower one waits in its
messages, too.
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

from course_lib.launchers.diagnosis.call_log import Call
from course_lib.trace import Span

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


QUESTIONS = 10  # of each machine: the quickest answer is the best


def clock_skew(store: Store, clock: Callable[[], float] = time.time) -> float:
    """Seconds to add to this machine's time of day to get rank 0's; for every rank to call.

    The first rank of each machine asks rank 0 several times. Of the quickest answer it is assumed that the way there
    took as long as the way back: the skew is wrong by at most half of the round trip. The store carries the questions,
    because with NCCL a message between two ranks would first set up a communicator.
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
    return min(answers[1:])[1]  # the first question may have waited for its turn


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


EXPOSED = "exposed communication"
SHORTEST_GAP = 1e-4  # seconds: computation that pauses for less goes on; Python needs that long from call to call
NCCL_KERNEL = re.compile(r"nccl\w*Kernel_(?:[a-z]+_)?([A-Za-z]+)")

Interval = tuple[float, float]


def exposed_communication(profile: Profile) -> list[Span]:
    """The stretches of this rank's time in which it communicates and does not compute, labelled by the operation.

    Over gloo, a message is under way from the call to its end; over NCCL, while its kernel runs.
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
    """Which collective or message an event of the profiler's is; nothing if it is none."""
    name = str(event["name"])
    if event.get("cat") == "user_annotation" and name.startswith("gloo:"):
        return name.removeprefix("gloo:")
    if event.get("cat") == "kernel" and (found := NCCL_KERNEL.match(name)):
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found.group(1)).lower()
    return ""


def joined(intervals: Iterable[Interval], gap: float = 0.0) -> Iterator[Interval]:
    """The same time in as few intervals as possible; gaps shorter than `gap` are filled."""
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
    """Where several are under way, the time counts once, for the first of them."""
    counted = float("-inf")
    for start, end, op in sorted(messages):
        if end > counted:
            yield max(start, counted), end, op
            counted = end


def without(interval: Interval, others: list[Interval]) -> Iterator[Interval]:
    """What is left of an interval; the others are in order, and apart from each other."""
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
