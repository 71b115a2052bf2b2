"""Line plots, such as losses over updates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle

from course_lib.drawing.picture import INK, SERIES, Picture

Points = Sequence[tuple[float, float]]
MOST_NAMES = 4  # in a legend inside the axes: a longer one would cover the curves


def draw_curves(
    series: Mapping[str, Points],
    *,
    x: str,
    y: str,
    lines: Mapping[str, float] | None = None,
    computed: Collection[str] = (),
    logarithmic: bool | str = False,
    marks: bool = True,
    bottom: float = 0,
    top: float | None = None,
    verticals: Mapping[str, float] | None = None,
) -> Picture:
    """Draw one curve per name. `lines` are named reference heights; the picture is cut off at `bottom` and `top`.

    `logarithmic` makes the x-axis logarithmic, or both axes if it is "both". `verticals` are named values of x.

    Everything that was not measured is dashed: the reference heights, and the curves named in `computed`. A computed
    curve "NAME, ..." has the color of the curve NAME, or is dark gray if there is no such curve.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    if unknown := [name for name in computed if name not in series]:
        raise ValueError(f"computed={unknown}: name curves of this picture, {', '.join(series)}")
    names = [*series, *(lines or {}), *(verticals or {})]
    figure = Figure(figsize=(8, 3.6 if len(names) <= MOST_NAMES else 4.4), layout="constrained")
    axes = figure.subplots()
    colors: dict[str, str] = {}
    for color, (name, points) in zip(cycle(SERIES), series.items(), strict=False):
        colors[name] = colors.get(name.partition(", ")[0], INK) if name in computed else color
        label = name.replace("$", r"\$")  # matplotlib would parse text between two dollar signs as math
        style = "--" if name in computed else "o-" if marks else "-"
        axes.plot(*zip(*points, strict=True), style, color=colors[name], label=label, markersize=4, linewidth=1.6)
    for name, height in (lines or {}).items():
        axes.axhline(height, color=INK, linestyle="--", linewidth=1, label=name)
    for name, place in (verticals or {}).items():
        axes.axvline(place, color=INK, linestyle=":", linewidth=1.4, label=name)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    if logarithmic == "both":
        axes.set_yscale("log", base=10)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter("")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom, top)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    if len(names) > MOST_NAMES:
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
    elif len(names) > 1:
        axes.legend(frameon=False)
    return Picture(figure, f"{y} against {x}: {', '.join(names)}")
