"""Numbers against numbers: losses over updates, throughput over batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_lib.pictures.palette import INK, SERIES
from course_lib.pictures.picture import Picture

Points = Sequence[tuple[float, float]]


def curves(
    series: Mapping[str, Points],
    *,
    x: str,
    y: str,
    lines: Mapping[str, float] | None = None,
    logarithmic: bool = False,
    marks: bool = True,
    top: float | None = None,
) -> Picture:
    """One curve per name. `lines` are named heights to compare with, dashed; `top` cuts the picture there."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    for colour, (name, points) in zip(SERIES, series.items(), strict=False):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, "o-" if marks else "-", color=colour, label=name, markersize=4, linewidth=1.6)
    for name, height in (lines or {}).items():
        axes.axhline(height, color=INK, linestyle="--", linewidth=1, label=name)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, top)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    if len(series) + len(lines or {}) > 1:
        axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return Picture(figure, f"{y} against {x}: {', '.join([*series, *(lines or {})])}")
