"""Line plots: losses over updates, throughput over batch size.

`losses` draws the losses of training runs from their logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.pictures.picture import INK, SERIES, Picture
from course_lib.training.log import LogError, Record, read_log

Points = Sequence[tuple[float, float]]


def curves(
    series: Mapping[str, Points],
    *,
    x: str,
    y: str,
    lines: Mapping[str, float] | None = None,
    computed: Collection[str] = (),
    logarithmic: bool | str = False,
    marks: bool = True,
    top: float | None = None,
    verticals: Mapping[str, float] | None = None,
) -> Picture:
    """Draw one curve per name. `lines` are named reference heights; `top` cuts off the picture there.

    `logarithmic` makes the x-axis logarithmic, or both axes if it is "both". `verticals` are named places on
    the x-axis.

    Anything not measured is dashed: the heights, and the curves named in `computed`, so that others show through.
    """
    if unknown := [name for name in computed if name not in series]:
        raise ValueError(f"computed={unknown}: name curves of this picture, {', '.join(series)}")
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    _draw(axes, series, x, marks, computed)
    for name, height in (lines or {}).items():
        axes.axhline(height, color=INK, linestyle="--", linewidth=1, label=name)
    for name, place in (verticals or {}).items():
        axes.axvline(place, color=INK, linestyle=":", linewidth=1.4, label=name)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    if logarithmic == "both":
        axes.set_yscale("log", base=10)
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(0, top)
    axes.set_ylabel(y, color=INK)
    names = [*series, *(lines or {}), *(verticals or {})]
    if len(names) > 1:
        axes.legend(frameon=False)
    return Picture(figure, f"{y} against {x}: {', '.join(names)}")


def panels(series_of: Mapping[str, Mapping[str, Points]], *, y: str, top: float | None = None) -> Picture:
    """Draw the same curves against several quantities: each `series_of[x]` is a panel, labeled with its x.

    All panels have the same height, and a curve has the same color in each.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    all_axes = figure.subplots(1, len(series_of), sharey=True, squeeze=False)[0]
    for axes, (x, series) in zip(all_axes, series_of.items(), strict=True):
        _draw(axes, series, x, marks=False)
    all_axes[0].set_ylim(0, top)
    all_axes[0].set_ylabel(y, color=INK)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    names = ", ".join(next(iter(series_of.values())))
    return Picture(figure, f"{y} against {' and against '.join(series_of)}: {names}")


def _draw(axes: Axes, series: Mapping[str, Points], x: str, marks: bool, computed: Collection[str] = ()) -> None:
    for colour, (name, points) in zip(cycle(SERIES), series.items(), strict=False):
        xs, ys = zip(*points, strict=True)
        label = name.replace("$", r"\$")  # matplotlib would parse text between two dollar signs as math
        style = "--" if name in computed else "o-" if marks else "-"
        axes.plot(xs, ys, style, color=colour, label=label, markersize=4, linewidth=1.6)
    axes.set_xlabel(x, color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def losses(*logs: str | Path, window: int = 20) -> Picture:
    """Draw one curve for each log: the mean of the last `window` updates, as the axis label says."""
    series = {label: _smoothed(read_log(log), window) for label, log in _labelled(logs).items()}
    for label, log in _labelled(logs).items():
        if not series[label]:
            raise LogError(f"{log} has no records yet: wait for the first update")
    return curves(series, x="update", y=f"loss, mean of {window} updates", marks=False)


def _labelled(logs: Sequence[str | Path]) -> dict[str, Path]:
    """Return the logs by name; by whole path if two logs have the same name."""
    paths = list(dict.fromkeys(map(Path, logs)))
    stems = Counter(path.stem for path in paths)
    return {path.stem if stems[path.stem] == 1 else str(path): path for path in paths}


def _smoothed(records: list[Record], window: int) -> list[tuple[float, float]]:
    recent = [[record.loss for record in records[max(0, end - window) : end]] for end in range(1, len(records) + 1)]
    return [(record.update, sum(each) / len(each)) for record, each in zip(records, recent, strict=True)]
