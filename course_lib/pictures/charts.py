"""Bars of memory, stages and plans; line plots, like losses over updates; and the padding of batches."""

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
from course_lib.lstm.memory import Memory
from course_lib.pictures.picture import BLOCKS, COLORS, INK, MEMORY, OTHERS, SERIES, Picture, block_name
from course_lib.pictures.timeline import row_axes, time_unit
from course_lib.planning import Explanation, Plan
from course_lib.planning.placement import BlockCost, Placement, step_cost
from course_lib.planning.plan import PARTS
from course_lib.training.log import LogError, Record, read_log


def memory(bars: Mapping[str, Memory], budget: int | None = None) -> Picture:
    """Draw one bar for each named `Memory`, split into parameters, gradients, optimizer and activations.

    A dashed line marks the `budget` in bytes, if there is one.
    """
    unit, size_of_unit = ("GiB", 2**30) if max(bar.total for bar in bars.values()) >= 2**33 else ("MiB", 2**20)
    figure = Figure(figsize=(8, 1.0 + 0.5 * len(bars)), layout="constrained")
    axes = figure.subplots()
    starts = [0.0] * len(bars)
    for part, color in MEMORY.items():
        sizes = [getattr(bar, part) / size_of_unit for bar in bars.values()]
        if not any(sizes):
            continue
        axes.barh(list(bars), sizes, left=starts, color=color, edgecolor="white", label=part)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    if budget is not None:
        axes.axvline(budget / size_of_unit, color=INK, linestyle="--", linewidth=1)
        place = (budget / size_of_unit, 1)
        axes.annotate(" budget", place, xycoords=("data", "axes fraction"), va="bottom", color=INK)
    axes.invert_yaxis()
    axes.set_xlabel(unit, color=INK)
    figure.legend(loc="outside upper right", ncols=len(MEMORY), frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    largest = {name: max(MEMORY, key=lambda part: getattr(bar, part)) for name, bar in bars.items()}
    words = "Memory bars: " + ", ".join(f"{name} (most is {part})" for name, part in largest.items())
    if budget is not None:
        over = [name for name, bar in bars.items() if bar.total > budget]
        words += f"; above the budget of {budget / size_of_unit:.3g} {unit}: {', '.join(over) or 'none'}"
    return Picture(figure, words)


CHARACTER = 0.028  # the width of a character in a block's name, as a share of the axes


def placement(placements: Mapping[str, Placement], costs: Sequence[BlockCost]) -> Picture:
    """Draw each named placement as one bar per stage, split into its blocks: time on the left, memory on the right.

    The dashed lines mark the slowest stage, which sets the pace, and the largest, which must fit on a device.
    """
    steps = [step_cost(placement, costs) for placement in placements.values()]
    unit, scale = time_unit(max(step.seconds for step in steps))
    heights = [0.75 + 0.33 * placement.stages for placement in placements.values()]
    figure = Figure(figsize=(9, 0.5 + sum(heights)), layout="constrained")
    rows = figure.subplots(len(placements), 2, sharex="col", squeeze=False, height_ratios=heights)
    for (left, right), placement, step in zip(rows, placements.values(), steps, strict=True):
        _draw_stages(left, placement, [cost.seconds * scale for cost in costs], scale * max(s.seconds for s in steps))
        _draw_stages(right, placement, [cost.bytes / 2**20 for cost in costs], max(s.bytes for s in steps) / 2**20)
        right.set_title(f"largest {_mebibytes(step.bytes)}", loc="left", color=INK)
    facts = [
        f"{name}: {placed.hops} {'hop' if placed.hops == 1 else 'hops'}, slowest {step.seconds * scale:.3g} {unit}"
        for (name, placed), step in zip(placements.items(), steps, strict=True)
    ]
    for axes, fact in zip(rows[:, 0], facts, strict=True):
        axes.set_title(fact.replace("milliseconds", "ms").replace("seconds", "s"), loc="left", color=INK)
    rows[-1, 0].set_xlabel(f"{unit} per step", color=INK)
    rows[-1, 1].set_xlabel("MiB", color=INK)
    largest = [f"{fact}, largest {_mebibytes(step.bytes)}" for fact, step in zip(facts, steps, strict=True)]
    return Picture(figure, "Placements: " + "; ".join(largest))


def _mebibytes(size: int) -> str:
    mebibytes = size / 2**20
    return f"{mebibytes:,.0f} MiB" if mebibytes >= 100 else f"{mebibytes:.3g} MiB"


def _draw_stages(axes: Axes, placement: Placement, values: Sequence[float], room: float) -> None:
    """Draw one bar per stage; `room` is the length of the longest bar in all placements."""
    ends = [0.0] * placement.stages
    for place, (stage, value) in enumerate(zip(placement.stage_of, values, strict=True)):
        name, kind = block_name(place, len(values))
        axes.barh(stage, value, left=ends[stage], height=0.76, color=BLOCKS[kind], edgecolor="white", linewidth=1.2)
        if value >= (len(name) + 1) * CHARACTER * room:
            axes.text(ends[stage] + value / 2, stage, name, ha="center", va="center_baseline", color="black")
        ends[stage] += value
    axes.axvline(max(ends), color=INK, linestyle="--", linewidth=0.8)
    axes.set_xlim(0, 1.03 * room or 1)
    row_axes(axes, placement.stages, "stage")


PART_COLORS = {
    "computing": COLORS["forward"],
    "recomputing": COLORS["recompute"],
    "starting actions": OTHERS[2],
    "bubble": COLORS["idle"],
    "messages": COLORS["receive"],
    "gathering and summing": OTHERS[0],
    "summing gradients": COLORS["communication"],
    "updating weights": COLORS["update"],
}


def plan_bars(plans: Sequence[Plan] | Explanation) -> Picture:
    """Draw one bar for each plan, split by how an update spends its time: computing, bubble, messages, sums."""
    shown = (plans.winner, plans.runner_up) if isinstance(plans, Explanation) else tuple(plans)
    unit, scale = time_unit(max(plan.seconds for plan in shown))
    figure = Figure(figsize=(9, 1.6 + 0.55 * len(shown)), layout="constrained")
    axes = figure.subplots()
    names = [f"{plan.name}{_order(plan)}\n{plan.pieces}" for plan in shown]
    starts = [0.0] * len(shown)
    for part in PARTS:
        sizes = [scale * plan.parts.get(part, 0.0) for plan in shown]
        if any(sizes):
            axes.barh(range(len(shown)), sizes, left=starts, color=PART_COLORS[part], edgecolor="white", label=part)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    axes.set_yticks(range(len(shown)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} per update, predicted", color=INK)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    words = [f"{plan.name}{_order(plan)} {plan.seconds * scale:.3g} {unit}, {_spent(plan)}" for plan in shown]
    return Picture(figure, "Where the time of an update goes: " + "; ".join(words))


def _order(plan: Plan) -> str:
    return f", {plan.neighbors}" if plan.neighbors else ""


def _spent(plan: Plan) -> str:
    return ", ".join(f"{seconds / plan.seconds:.0%} {part}" for part, seconds in plan.parts.items())


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
    _draw_lines(axes, series, x, marks, computed)
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
    axes.set_ylabel(y, color=INK)
    if len(names) > MOST_NAMES:
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
    elif len(names) > 1:
        axes.legend(frameon=False)
    return Picture(figure, f"{y} against {x}: {', '.join(names)}")


def _draw_lines(axes: Axes, series: Mapping[str, Points], x: str, marks: bool, computed: Collection[str] = ()) -> None:
    colors: dict[str, str] = {}
    for color, (name, points) in zip(cycle(SERIES), series.items(), strict=False):
        colors[name] = colors.get(name.partition(", ")[0], INK) if name in computed else color
        xs, ys = zip(*points, strict=True)
        label = name.replace("$", r"\$")  # matplotlib would parse text between two dollar signs as math
        style = "--" if name in computed else "o-" if marks else "-"
        axes.plot(xs, ys, style, color=colors[name], label=label, markersize=4, linewidth=1.6)
    axes.set_xlabel(x, color=INK)
    axes.spines[["top", "right"]].set_visible(False)


def losses(*logs: str | Path, window: int = 20) -> Picture:
    """Draw one curve for each log: the mean loss of the last `window` updates."""
    series = {label: _smoothed(read_log(log), window) for label, log in _labelled(logs).items()}
    for label, log in _labelled(logs).items():
        if not series[label]:
            raise LogError(f"{log} has no records yet: wait for the first update")
    return curves(series, x="update", y=f"loss, mean of {window} updates", marks=False)


def _labelled(logs: Sequence[str | Path]) -> dict[str, Path]:
    """Return the logs by name, or by their whole path if two logs have the same name."""
    paths = list(dict.fromkeys(map(Path, logs)))
    stems = Counter(path.stem for path in paths)
    return {path.stem if stems[path.stem] == 1 else str(path): path for path in paths}


def _smoothed(records: list[Record], window: int) -> list[tuple[float, float]]:
    recent = [[record.loss for record in records[max(0, end - window) : end]] for end in range(1, len(records) + 1)]
    return [(record.update, sum(losses) / len(losses)) for record, losses in zip(records, recent, strict=True)]


GAP = 2  # white rows between two batches


def padding(panels: Mapping[str, Sequence[Batch]]) -> Picture:
    """Draw one panel for each named list of batches: a row per sequence, a column per step, and padding in gray.

    If only some valid steps count in the loss, dots mark them, and the titles leave out the share of padding.
    """
    longest = max(batch.steps for batches in panels.values() for batch in batches)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    dotted = any(_marked(batch) for batches in panels.values() for batch in batches)
    for axes, (name, batches) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _draw_batches(axes, batches, longest)
        axes.set_title(name if dotted else f"{name}: {_share(batches):.0%} padding", loc="left", color=INK)
    handles = [Patch(facecolor=COLORS["forward"], label="steps of a sequence")]
    handles += [Patch(facecolor=COLORS["idle"], label="padding")]
    if dotted:
        handles += [Patch(facecolor=COLORS["backward"], label="the step whose answer is read")]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
    if dotted:
        ends = ", ".join(f"{name} {_at_their_ends(batches)}" for name, batches in panels.items())
        return Picture(figure, f"Sequences of a batch, a row each, and where they are read. At their ends: {ends}")
    shares = ", ".join(f"{name} {_share(batches):.0%}" for name, batches in panels.items())
    return Picture(figure, f"Sequences of a batch, one per row, and the padding behind them: {shares} of the cells")


def _draw_batches(axes: Axes, batches: Sequence[Batch], longest: int) -> None:
    strips, dots, row = [], [], 0
    for batch in batches:
        valid = batch.valid.cpu().numpy().T
        strip = numpy.ones((len(valid) + GAP, longest, 3))
        strip[: len(valid), : batch.steps] = to_rgb(COLORS["idle"])
        strip[: len(valid), : batch.steps][valid] = to_rgb(COLORS["forward"])
        if _marked(batch):
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


def _marked(batch: Batch) -> bool:
    return bool((batch.mask != batch.valid).any())


def _at_their_ends(batches: Sequence[Batch]) -> str:
    """Return how many of the marked steps end their sequence, for example `2 of 20`."""
    marks = [(step, batch.lengths[row] - 1) for batch in batches for step, row in batch.mask.nonzero().tolist()]
    return f"{sum(step == int(end) for step, end in marks)} of {len(marks)}"


def _share(batches: Sequence[Batch]) -> float:
    cells = sum(batch.steps * batch.sequences for batch in batches)
    return 1 - sum(int(batch.lengths.sum()) for batch in batches) / cells
