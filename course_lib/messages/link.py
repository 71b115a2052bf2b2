"""Two numbers describe a link: its latency, which every message pays, and its bandwidth.

A message takes about `latency + bytes / bandwidth`, so you can predict the cost of every collective before you run it.
`fit_line` fits such a line, a fixed cost and a cost per unit, to any measurements.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    """`fixed + each * x`. The fixed part dominates left of the `knee`, the growing part right of it."""

    fixed: float
    each: float

    def at(self, x: float) -> float:
        return self.fixed + self.each * x

    @property
    def knee(self) -> float:
        """The x at which both parts are equal."""
        return self.fixed / self.each


def fit_line(measured: Sequence[tuple[float, float]]) -> Line:
    """Return the line through (x, y) points with the smallest *relative* errors: y may span orders of magnitude."""
    if len({x for x, _ in measured}) < 2:
        raise ValueError("a line needs two points: measure at least two sizes")
    weighted = [(1 / y**2, x, y) for x, y in measured]
    total = sum(weight for weight, _, _ in weighted)
    mean_x = sum(weight * x for weight, x, _ in weighted) / total
    mean_y = sum(weight * y for weight, _, y in weighted) / total
    slope = sum(weight * (x - mean_x) * (y - mean_y) for weight, x, y in weighted)
    slope /= sum(weight * (x - mean_x) ** 2 for weight, x, _ in weighted)
    slope = max(slope, 1e-15)  # noise can make the larger size look faster
    return Line(max(mean_y - slope * mean_x, 1e-9), slope)


SIZES = tuple(4**power for power in range(1, 13))  # 4 bytes to 16 MiB


@dataclass(frozen=True)
class Link:
    """A link between two ranks: `latency` in seconds, `bandwidth` in bytes per second, and the measurements."""

    latency: float
    bandwidth: float
    measured: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    def seconds(self, size: float) -> float:
        """Return how long a message of `size` bytes takes."""
        return self.latency + size / self.bandwidth

    def all_reduce_seconds(self, size: float, ranks: float) -> float:
        """Return how long a ring all-reduce takes: 2 (ranks - 1) rounds, each with a piece of size / ranks bytes."""
        return 2 * (ranks - 1) * self.seconds(size / ranks)

    def gather_seconds(self, size: float, ranks: int) -> float:
        """Return how long an all-gather takes with a ring or a tree, whichever is faster: a tree has fewer rounds."""
        ring = (ranks - 1) * self.seconds(size / ranks)
        return min(ring, math.ceil(math.log2(ranks)) * self.latency + size / self.bandwidth) if ranks > 1 else 0.0

    def __str__(self) -> str:
        return f"latency {self.latency * 1e6:.0f} microseconds, bandwidth {self.bandwidth / 1e9:.2f} GB/s"


def measure_link(sizes: Sequence[int] = SIZES, repeats: int = 15) -> Link:
    """Send messages back and forth between two ranks, and fit latency and bandwidth to their times."""
    from course_lib.launcher.notebook.launch import launch

    return fit(launch(ping_pong, sizes, repeats, ranks=2)[0])


def ping_pong(sizes: Sequence[int], repeats: int) -> list[tuple[int, float]]:
    """Run on two ranks; return (bytes, seconds one way) for every size: the lower quartile of `repeats` round trips.

    Other work on the machine can only make a time longer. The sizes take turns, so that it affects all of them.
    """
    import torch
    import torch.distributed as dist

    peer, is_first = 1 - dist.get_rank(), dist.get_rank() == 0
    messages = [torch.zeros(size, dtype=torch.uint8) for size in sizes]  # on the CPU: gloo only sends host memory
    times: list[list[float]] = [[] for _ in sizes]
    for _ in range(repeats + 1):
        for message, seconds in zip(messages, times, strict=True):
            dist.barrier()
            started_at = time.monotonic()
            dist.send(message, peer) if is_first else dist.recv(message, peer)
            dist.recv(message, peer) if is_first else dist.send(message, peer)
            seconds.append((time.monotonic() - started_at) / 2)
    return [(size, sorted(seconds[1:])[len(seconds) // 4]) for size, seconds in zip(sizes, times, strict=True)]


def fit(measured: Sequence[tuple[float, float]]) -> Link:
    """Return the link whose latency and bandwidth minimize the *relative* errors of its predictions."""
    line = fit_line(measured)
    return Link(line.fixed, 1 / line.each, tuple(measured))
