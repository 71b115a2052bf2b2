"""Line plots, like losses over updates, and the padding of batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from course_lib.data import Batch
from course_lib.pictures.picture import COLORS, INK, SERIES, Picture
from course_lib.training.log import LogError, read_log

Points = Sequence[tuple[float, float]]
MOST_NAMES = 4  # in a legend inside the axes: a longer one would cover the curves


def curves(
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


def losses(*logs: str | Path, window: int = 20) -> Picture:
    """Draw one curve for each log: the mean loss of the last `window` updates."""
    paths = list(dict.fromkeys(map(Path, logs)))
    stems = Counter(path.stem for path in paths)
    series = {}
    for path in paths:
        records = read_log(path)
        if not records:
            raise LogError(f"{path} has no records yet: wait for the first update")
        recent = [records[max(0, end - window) : end] for end in range(1, len(records) + 1)]
        means = [sum(record.loss for record in last) / len(last) for last in recent]
        name = path.stem if stems[path.stem] == 1 else str(path)  # two logs may have the same name
        series[name] = [(record.update, mean) for record, mean in zip(records, means, strict=True)]
    return curves(series, x="update", y=f"loss, mean of {window} updates", marks=False)


GAP = 2  # white rows between two batches


def padding(panels: Mapping[str, Sequence[Batch]]) -> Picture:
    """Draw one panel for each named list of batches: a row per sequence, a column per step, and padding in gray.

    If only some valid steps count in the loss, dots mark them, and the titles leave out the share of padding.
    """
    every_batch = [batch for batches in panels.values() for batch in batches]
    longest = max(batch.steps for batch in every_batch)
    dotted = any(bool((batch.mask != batch.valid).any()) for batch in every_batch)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    facts = {}
    for axes, (name, batches) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _draw_batches(axes, batches, longest, dotted)
        cells = sum(batch.steps * batch.sequences for batch in batches)
        share = f"{1 - sum(int(batch.lengths.sum()) for batch in batches) / cells:.0%}"
        axes.set_title(name if dotted else f"{name}: {share} padding", loc="left", color=INK)
        marks = [(step, batch.lengths[row] - 1) for batch in batches for step, row in batch.mask.nonzero().tolist()]
        at_their_ends = f"{sum(step == int(end) for step, end in marks)} of {len(marks)}"
        facts[name] = at_their_ends if dotted else share
    handles = [Patch(facecolor=COLORS["forward"], label="steps of a sequence")]
    handles += [Patch(facecolor=COLORS["idle"], label="padding")]
    if dotted:
        handles += [Patch(facecolor=COLORS["backward"], label="the step whose answer is read")]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
    words = ", ".join(f"{name} {fact}" for name, fact in facts.items())
    if dotted:
        return Picture(figure, f"Sequences of a batch, a row each, and where they are read. At their ends: {words}")
    return Picture(figure, f"Sequences of a batch, one per row, and the padding behind them: {words} of the cells")


def _draw_batches(axes: Axes, batches: Sequence[Batch], longest: int, dotted: bool) -> None:
    strips, dots, row = [], [], 0
    for batch in batches:
        valid = batch.valid.cpu().numpy().T
        strip = numpy.ones((len(valid) + GAP, longest, 3))
        strip[: len(valid), : batch.steps] = to_rgb(COLORS["idle"])
        strip[: len(valid), : batch.steps][valid] = to_rgb(COLORS["forward"])
        if dotted and bool((batch.mask != batch.valid).any()):
            dots += [(step, row + sequence) for step, sequence in batch.mask.nonzero().tolist()]
        strips.append(strip)
        row += len(strip)
    axes.imshow(numpy.concatenate(strips)[:-GAP], aspect="auto", interpolation="nearest")
    if dots:
        axes.scatter(*zip(*dots, strict=True), s=22, color=COLORS["backward"], edgecolor="white", linewidth=0.4)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("sequence", color=INK)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
