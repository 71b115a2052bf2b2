"""What a launch returns."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.launcher.tracing.recording import Collective, Profile
from course_lib.launcher.tracing.stragglers import Stragglers, find_stragglers
from course_lib.launcher.tracing.trace_file import write_trace
from course_lib.launcher.wire.messages import Returned
from course_lib.runtime.trace import Span
from course_lib.runtime.words import counted


@dataclass(frozen=True, repr=False)
class Run(Sequence):
    """The ranks' return values, in order of rank: `run[2]` is what rank 2 returned.

    `seconds` is the time from when the first rank entered the function to when the last one left it, not counting the
    time to start the ranks. `output` holds (rank, line) pairs. `spans` holds what `trace.span` recorded;
    `draw_timeline(run)` and `draw_messages(run)` draw it. `collectives` holds when each rank reached each of
    the last 2000 collectives, `core_waits` how long each rank had waited for a core at various times, and `profiles`
    what PyTorch's profiler recorded, if it was on.
    """

    values: tuple[Any, ...]
    seconds: float
    output: list[tuple[int, str]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    core_waits: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def trace(self, path: str | Path) -> Path:
        """Write everything recorded to one file for ui.perfetto.dev or chrome://tracing, and return its path."""
        return write_trace(path, len(self), self.spans, self.collectives, self.profiles, self.core_waits)

    def stragglers(self) -> Stragglers:
        """Find the rank that the others wait for, if any, and why. Prints as a table with one row per rank."""
        return find_stragglers(len(self), self.collectives, self.spans, self.core_waits)

    def __getitem__(self, rank):
        return self.values[rank]

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Run of {counted(len(self), 'rank')}: [{', '.join(reprlib.repr(value) for value in self.values)}]"


def run_of(
    values: Sequence[Any], reports: Sequence[Returned], seconds: float, output: Sequence[tuple[int, str]] = ()
) -> Run:
    """Return a `Run` with the ranks' values and recordings. Times count from when the first rank began."""
    started_at = min(report.began for report in reports)
    return Run(
        values=tuple(values),
        seconds=seconds,
        output=list(output),
        spans=[span.since(started_at) for report in reports for span in report.spans],
        collectives=[collective.since(started_at) for report in reports for collective in report.collectives],
        profiles=[report.profile.since(started_at) for report in reports if report.profile],
        core_waits={report.rank: [(at - started_at, s) for at, s in report.core_waits] for report in reports},
    )
