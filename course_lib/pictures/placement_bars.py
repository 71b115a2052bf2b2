"""Which block lives on which stage, and what that costs: time and memory of each stage, for several placements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.pictures.palette import BLOCKS, INK
from course_lib.pictures.picture import Picture
from course_lib.pictures.timeline import row_axes, time_unit
from course_lib.planning.placement import BlockCost, Placement, step_cost

WAY_IN, LAYER, WAY_OUT = BLOCKS.values()
CHARACTER = 0.02  # the share of the axes' width that one character of a block's name needs


def placement(placements: Mapping[str, Placement], costs: Sequence[BlockCost]) -> Picture:
    """For each named placement one bar per stage, cut into its blocks: time on the left, memory on the right.

    The dashed lines mark the slowest stage, which sets the pace, and the largest, which the devices must have room for.
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
    """One bar per stage; `room` is the longest bar of all placements."""
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
    """The short name and the colour of a block: the way in, an LSTM layer, or the way out."""
    if place == 0:
        return "in", WAY_IN
    return ("out", WAY_OUT) if place == blocks - 1 else (str(place), LAYER)
