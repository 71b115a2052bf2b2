"""One device, one process: the reference that every other strategy is compared with."""

from __future__ import annotations

from course_lib.strategies.base import Strategy


class Single(Strategy):
    """Forward, backward, update."""
