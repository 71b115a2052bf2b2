"""Stacked bars: memory by kind, the cost of each stage of a placement, and the time of an update by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.lstm.memory import Memory
from course_lib.pictures.picture import BLOCKS, COLOURS, INK, MEMORY, OTHERS, Picture
from course_lib.pictures.timeline import row_axes, time_unit
from course_lib.planning import Explanation, Plan
from course_lib.planning.placement import BlockCost, Placement, step_cost
from course_lib.planning.plan import PARTS


def memory(bars: Mapping[str, Memory], budget: int | None = None) -> Picture:
    """Draw one bar for each named `Memory`, split into parameters, gradients, optimizer and activations.

    A dashed line marks the `budget` in bytes, if there is one.
    """
    unit, size_of_unit = ("GiB", 2**30) if max(bar.total for bar in bars.values()) >= 2**33 else ("MiB", 2**20)
    figure = Figure(figsize=(8, 1.0 + 0.5 * len(bars)), layout="constrained")
    axes = figure.subplots()
    left = [0.0] * len(bars)
    for part, colour in MEMORY.items():
        sizes = [getattr(bar, part) / size_of_unit for bar in bars.values()]
        axes.barh(list(bars), sizes, left=left, color=colour, edgecolor="white", label=part)
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    if budget is not None:
        axes.axvline(budget / size_of_unit, color=INK, linestyle="--", linewidth=1)
        axes.annotate(" budget", (budget / size_of_unit, 1), xycoords=("data", "axes fraction"), va="bottom", color=INK)
    axes.invert_yaxis()
    axes.set_xlabel(unit, color=INK)
    figure.legend(loc="outside upper right", ncols=len(MEMORY), frameon=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    largest = {name: max(MEMORY, key=lambda part: getattr(bar, part)) for name, bar in bars.items()}
    words = "Memory bars: " + ", ".join(f"{name} (most is {part})" for name, part in largest.items())
    if budget is not None:
        over = [name for name, bar in bars.items() if bar.total > budget]
        words += f"; above the budget of {budget / size_of_unit:.3g} {unit}: {', '.join(over) or 'none'}"
    return Picture(figure, words)


WAY_IN, LAYER, WAY_OUT = BLOCKS.values()
CHARACTER = 0.02  # the share of the axes' width that one character of a block's name needs


def placement(placements: Mapping[str, Placement], costs: Sequence[BlockCost]) -> Picture:
    """Draw each named placement as one bar per stage, split into its blocks: time on the left, memory on the right.

    The dashed lines mark the slowest stage, which sets the pace, and the largest, which must fit on a device.
    """
    steps = [step_cost(each, costs) for each in placements.values()]
    unit, scale = time_unit(max(step.seconds for step in steps))
    heights = [0.7 + 0.3 * each.stages for each in placements.values()]
    figure = Figure(figsize=(9, 0.5 + sum(heights)), layout="constrained")
    rows = figure.subplots(len(placements), 2, sharex="col", squeeze=False, height_ratios=heights)
    for (left, right), each, step in zip(rows, placements.values(), steps, strict=True):
        _draw(left, each, [cost.seconds * scale for cost in costs], scale * max(s.seconds for s in steps))
        _draw(right, each, [cost.bytes / 2**20 for cost in costs], max(s.bytes for s in steps) / 2**20)
        right.set_title(f"largest {step.bytes / 2**20:.3g} MiB", loc="left", fontsize=10, color=INK)
    facts = [
        f"{name}: {each.hops} {'hop' if each.hops == 1 else 'hops'}, slowest {step.seconds * scale:.3g} {unit}"
        for (name, each), step in zip(placements.items(), steps, strict=True)
    ]
    for axes, fact in zip(rows[:, 0], facts, strict=True):
        axes.set_title(fact, loc="left", fontsize=10, color=INK)
    rows[-1, 0].set_xlabel(f"{unit} per step", color=INK)
    rows[-1, 1].set_xlabel("MiB", color=INK)
    largest = [f"{fact}, largest {step.bytes / 2**20:.3g} MiB" for fact, step in zip(facts, steps, strict=True)]
    return Picture(figure, "Placements: " + "; ".join(largest))


def _draw(axes: Axes, placement: Placement, values: Sequence[float], room: float) -> None:
    """Draw one bar per stage; `room` is the longest bar of all placements."""
    ends = [0.0] * placement.stages
    for place, (stage, value) in enumerate(zip(placement.stage_of, values, strict=True)):
        name, colour = _block(place, len(values))
        axes.barh(stage, value, left=ends[stage], height=0.76, color=colour, edgecolor="white", linewidth=1.2)
        if value >= (len(name) + 1) * CHARACTER * room:
            axes.text(
                ends[stage] + value / 2, stage, name, ha="center", va="center_baseline", fontsize=8, color="black"
            )
        ends[stage] += value
    axes.axvline(max(ends), color=INK, linestyle="--", linewidth=0.8)
    axes.set_xlim(0, 1.03 * room or 1)
    row_axes(axes, placement.stages, "stage")


def _block(place: int, blocks: int) -> tuple[str, str]:
    """Return the short name and the color of a block: the input block, an LSTM layer, or the output block."""
    if place == 0:
        return "in", WAY_IN
    return ("out", WAY_OUT) if place == blocks - 1 else (str(place), LAYER)


PART_COLOURS = {
    "computing": COLOURS["forward"],
    "recomputing": COLOURS["recompute"],
    "starting actions": OTHERS[2],
    "bubble": COLOURS["idle"],
    "messages": COLOURS["receive"],
    "gathering weights": OTHERS[0],
    "summing gradients": COLOURS["communication"],
    "updating weights": COLOURS["update"],
}


def plan_bars(plans: Sequence[Plan] | Explanation) -> Picture:
    """Draw one bar for each plan, split by how an update spends its time: computing, bubble, messages, sums."""
    shown = (plans.winner, plans.runner_up) if isinstance(plans, Explanation) else tuple(plans)
    unit, scale = time_unit(max(plan.seconds for plan in shown))
    figure = Figure(figsize=(9, 1.3 + 0.45 * len(shown)), layout="constrained")
    axes = figure.subplots()
    names = [f"{plan.mesh}{_order(plan)}\n{plan.pieces}" for plan in shown]
    left = [0.0] * len(shown)
    for part in PARTS:
        sizes = [scale * plan.parts.get(part, 0.0) for plan in shown]
        if any(sizes):
            axes.barh(range(len(shown)), sizes, left=left, color=PART_COLOURS[part], edgecolor="white", label=part)
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} per update, predicted", color=INK)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    words = [f"{plan.mesh}{_order(plan)} {plan.seconds * scale:.3g} {unit}, {_spent(plan)}" for plan in shown]
    return Picture(figure, "Where the time of an update goes: " + "; ".join(words))


def _order(plan: Plan) -> str:
    return f", {plan.inside} inside" if min(plan.replicas, plan.stages) > 1 else ""


def _spent(plan: Plan) -> str:
    return ", ".join(f"{seconds / plan.seconds:.0%} {part}" for part, seconds in plan.parts.items())
