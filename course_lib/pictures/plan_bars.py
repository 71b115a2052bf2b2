"""Where the time of an update goes, plan by plan: stacked bars."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from course_lib.pictures.palette import COLOURS, INK, OTHERS
from course_lib.pictures.picture import Picture
from course_lib.pictures.timeline import time_unit
from course_lib.planning import Explanation, Plan
from course_lib.planning.plan import PARTS

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
    """One bar for each plan, cut into what the time of an update is spent on: computing, bubble, messages, sums."""
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
