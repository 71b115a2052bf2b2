"""Who did what when: one row per rank, one bar per span."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lib.launchers.run import Run
from course_lib.launchers.tracing.events import exposed_communication
from course_lib.launchers.tracing.trace_file import read_trace, spans_in
from course_lib.pictures.palette import INK, colours_for
from course_lib.pictures.picture import Picture
from course_lib.trace import Span

LETTERS_IN_A_ROW = 55  # of a legend


def timeline(run: Run | Sequence[Span] | str | Path, ranks: int | None = None) -> Picture:
    """Draw what a run recorded, rank 0 on top; time counts from the first span. Spans alone need their `ranks`.

    A trace file that `run.trace(FILE)` or `course train --profile FILE` wrote can be drawn, too; with a profile, the
    picture shows which communication is exposed: nothing is computed meanwhile.

    What happens *during* something else on the same rank is drawn at half height, so that both can be seen.
    """
    spans, ranks = spans_of(run, ranks)
    first = min((span.start for span in spans), default=0.0)
    spans = [span.since(first) for span in spans]
    names = list(dict.fromkeys(span.name for span in sorted(spans, key=lambda span: span.start)))
    colours = colours_for(names)
    unit, scale = time_unit(max((span.end for span in spans), default=0.0))
    figure = Figure(figsize=(9, 1.3 + 0.38 * ranks), layout="constrained")
    axes = figure.subplots()
    for span in sorted(spans, key=lambda span: -span.seconds):
        axes.broken_barh(
            [(span.start * scale, span.seconds * scale)],
            (span.rank, 0.38) if _is_inside_another(span, spans) else (span.rank - 0.38, 0.76),
            facecolor=colours[span.name],
            edgecolor="white",
            linewidth=0.6,
        )
    paced = any(span.paced for span in spans)
    rank_axes(axes, ranks, unit, paced)
    if names:
        handles = [Patch(facecolor=colours[name], label=name) for name in names]
        columns = min(6, len(names)) if sum(map(len, names)) <= LETTERS_IN_A_ROW else 3
        figure.legend(handles=handles, loc="outside upper right", ncols=columns, frameon=False)
    return Picture(figure, _describe(names, ranks, paced))


def spans_of(run: Run | Sequence[Span] | str | Path, ranks: int | None) -> tuple[list[Span], int]:
    """The spans of a run, of a trace file, or the given ones, and how many ranks they are of."""
    if isinstance(run, str | Path):
        count, spans = spans_in(read_trace(run))
        return spans, count
    if isinstance(run, Run):
        exposed = [span for profile in run.profiles for span in exposed_communication(profile)]
        return [*run.spans, *exposed], len(run)
    if ranks is None:
        raise ValueError("spans alone do not say how many ranks there were: give ranks=4, or the whole run")
    return list(run), ranks


def _is_inside_another(span: Span, spans: Sequence[Span]) -> bool:
    middle = (span.start + span.end) / 2
    return any(
        other.rank == span.rank and other.seconds > span.seconds and other.start <= middle <= other.end
        for other in spans
        if other.name != span.name
    )


def rank_axes(axes: Axes, ranks: int, unit: str, paced: bool, rows: str = "rank") -> None:
    """Dress axes whose rows are ranks, or stages, and whose width is time."""
    row_axes(axes, ranks, rows)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time in {unit}" + (" (paced: blocks sleep to a fixed length)" if paced else ""), color=INK)


def row_axes(axes: Axes, count: int, name: str) -> None:
    """Dress axes with `count` named rows, the first on top."""
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_yticks(range(count), [f"{name} {row}" for row in range(count)])
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def time_unit(longest: float) -> tuple[str, float]:
    """The unit in which times up to `longest` seconds read well, and how many of it make a second."""
    return ("seconds", 1.0) if longest >= 2 else ("milliseconds", 1000.0)


def _describe(names: list[str], ranks: int, paced: bool) -> str:
    if not names:
        return f"Timeline of {ranks} ranks with no spans: record some with trace.span(name)"
    kind = "Paced timeline" if paced else "Timeline"
    return f"{kind} of {ranks} {'rank' if ranks == 1 else 'ranks'}: {', '.join(names)}"
