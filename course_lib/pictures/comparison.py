"""One rank of several runs on one axis: the same work done in different ways."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lib.launchers.run import Run
from course_lib.pictures.palette import INK, colours_for
from course_lib.pictures.picture import Picture
from course_lib.pictures.timeline import rank_axes, time_unit
from course_lib.trace import Span

NARROWEST = 0.035  # the share of the picture's width that a label needs


def comparison(runs: Mapping[str, Run], rank: int = 0) -> Picture:
    """One row for each run, all from the same zero: what `rank` computed above, what it communicated below.

    A bar bears the label of its span, where there is room: of which layer or bucket it was.
    """
    rows = {name: _of_rank(run, rank) for name, run in runs.items()}
    spans = [span for row in rows.values() for span in row]
    longest = max((span.end for span in spans), default=0.0)
    unit, scale = time_unit(longest)
    names = list(dict.fromkeys(span.name for span in sorted(spans, key=lambda span: span.start)))
    colours = colours_for(names)
    figure = Figure(figsize=(9, 1.3 + 0.62 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows.values()):
        for span in row:
            _draw(axes, place, span, colours[span.name], scale, span.seconds > NARROWEST * longest)
    paced = any(span.paced for span in spans)
    rank_axes(axes, len(rows), unit, paced)
    axes.set_yticks(range(len(rows)), list(rows))
    handles = [Patch(facecolor=colours[name], label=name) for name in names]
    figure.legend(handles=handles, loc="outside upper right", ncols=max(1, min(6, len(names))), frameon=False)
    return Picture(figure, _describe(rows, rank, unit, scale, paced))


def _of_rank(run: Run, rank: int) -> list[Span]:
    spans = sorted((span for span in run.spans if span.rank == rank), key=lambda span: -span.seconds)
    first = min((span.start for span in spans), default=0.0)
    return [span.since(first) for span in spans]


def _draw(axes: Axes, place: int, span: Span, colour: str, scale: float, labelled: bool) -> None:
    lower = span.name in ("communication", "send", "receive")
    bottom = place if lower else place - 0.4
    axes.broken_barh(
        [(span.start * scale, span.seconds * scale)],
        (bottom, 0.4),
        facecolor=colour,
        edgecolor="white",
        linewidth=0.6,
    )
    if labelled and span.label:
        middle = (span.start + span.end) / 2 * scale
        axes.text(middle, bottom + 0.2, span.label, ha="center", va="center", fontsize=8, color=_ink_on(colour))


def _ink_on(colour: str) -> str:
    """White where the bar is dark."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 110 else INK


def _describe(rows: Mapping[str, list[Span]], rank: int, unit: str, scale: float, paced: bool) -> str:
    ends = {name: max((span.end for span in row), default=0.0) * scale for name, row in rows.items()}
    took = ", ".join(f"{name} {end:.0f} {unit}" for name, end in ends.items())
    return f"{'Paced timelines' if paced else 'Timelines'} of rank {rank} on one axis: {took}"
