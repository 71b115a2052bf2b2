"""What a launch returns."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.trace import Span


@dataclass(frozen=True, repr=False)
class Run(Sequence):
    """The ranks' values, in order of rank: `run[2]` is what rank 2 returned.

    `seconds` counts from the first rank that began the function to the last that ended it, without the
    time it took to start the ranks. `output` holds (rank, line) pairs, `spans` what `trace.span` recorded:
    `pictures.timeline(run)` and `pictures.messages(run)` draw them.
    """

    values: tuple[Any, ...]
    seconds: float
    output: list[tuple[int, str]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def __getitem__(self, rank):
        return self.values[rank]

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        ranks = "1 rank" if len(self) == 1 else f"{len(self)} ranks"
        return f"Run of {ranks}: [{', '.join(reprlib.repr(value) for value in self.values)}]"
