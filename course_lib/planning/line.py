"""A fixed cost, and a cost for each: a straight line through what was measured, and where its two parts are equal.

A message has a latency and a time per byte, an update of a model a fixed time and one per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """`fixed + each * x`. Left of the `knee` most of it is the fixed part, right of it what grows with x."""

    fixed: float
    each: float

    def at(self, x: float) -> float:
        return self.fixed + self.each * x

    @property
    def knee(self) -> float:
        """The x at which both parts are equal."""
        return self.fixed / self.each


def fit_line(measured: Sequence[tuple[float, float]]) -> Line:
    """The line through (x, y) whose predictions are off by the smallest *relative* errors.

    Where y spans orders of magnitude, an ordinary least-squares fit would look at the largest only.
    """
    if len({x for x, _ in measured}) < 2:
        raise ValueError("a line needs two points: measure at least two sizes")
    weighted = [(1 / y**2, x, y) for x, y in measured]
    total = sum(weight for weight, _, _ in weighted)
    mean_x = sum(weight * x for weight, x, _ in weighted) / total
    mean_y = sum(weight * y for weight, _, y in weighted) / total
    slope = sum(weight * (x - mean_x) * (y - mean_y) for weight, x, y in weighted)
    slope /= sum(weight * (x - mean_x) ** 2 for weight, x, _ in weighted)
    slope = max(slope, 1e-15)  # noise can make the larger one look faster
    return Line(max(mean_y - slope * mean_x, 1e-9), slope)
