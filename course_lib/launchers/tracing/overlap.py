"""Communication that nothing hides: the time in which a rank's messages are under way and it computes nothing.

Both are read from what PyTorch's profiler saw. A rank that waits for a slower one waits in its messages, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from course_lib.launchers.tracing.events import Profile
from course_lib.trace import Span

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
