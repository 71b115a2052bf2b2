"""Bars of plans: how the time of an update under each is spent."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.drawing.svg import SHEET, Drawing, bar, breadth, legend, text
from course_lib.one_device.memory_widget import AFTER, TALL
from course_lib.runtime.words import time_in_words
from course_lib.sharding.choose_plan import Explanation
from course_lib.sharding.plan import PARTS, Plan

CLASSES = ("forward", "recompute", "starting", "idle", "receive", "gathering", "communication", "update")
PART_CLASSES: dict[str, str] = dict(zip(PARTS, CLASSES, strict=True))


def draw_plans(plans: Sequence[Plan] | Explanation) -> Drawing:
    """Draw one bar for each plan, split by how an update spends its time: computing, bubble, messages, sums."""
    shown = (plans.winner, plans.runner_up) if isinstance(plans, Explanation) else tuple(plans)
    names = [plan.name + (f", {plan.neighbors}" if plan.neighbors else "") for plan in shown]
    longest, left = max(plan.seconds for plan in shown), max(map(breadth, [*names, *(str(p.pieces) for p in shown)]))
    scale = (SHEET - AFTER - left - 12) / longest
    parts = [part for part in PARTS if any(plan.parts.get(part) for plan in shown)]
    entries = [(PART_CLASSES[part], part) for part in parts]
    shapes = [legend(entries[at : at + 4], 0, 16 + 5 * at) for at in range(0, len(entries), 4)]
    y, words = 24.0 + 20 * (1 + (len(entries) - 1) // 4), []
    for name, plan in zip(names, shown, strict=True):
        spent = [(PART_CLASSES[part], plan.parts.get(part, 0.0) * scale, "") for part in parts]
        shapes += [text(0, y + 11, name, "ink strong"), text(0, y + 29, str(plan.pieces))]
        shapes.append(bar(left + 12, y + 4, TALL, spent, time_in_words(plan.seconds)))
        shares = ", ".join(f"{seconds / plan.seconds:.0%} {part}" for part, seconds in plan.parts.items())
        words.append(f"{name} {time_in_words(plan.seconds)}, {shares}")
        y += 44
    shapes.append(text(left + 12, y + 12, "time of an update, predicted"))
    return Drawing("".join(shapes), SHEET, y + 20, "Where the time of an update goes: " + "; ".join(words))
