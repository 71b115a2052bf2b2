"""Bars of memory, of stages with their blocks, and of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.lstm.memory import Memory
from course_lib.pictures.picture import MEMORY
from course_lib.pictures.svg import SHEET, Drawing, bar, breadth, legend, line, text
from course_lib.planning.placement import BlockCost, Placement, step_cost
from course_lib.planning.plan import PARTS, Plan
from course_lib.planning.planner import Explanation
from course_lib.words import counted, memory_in_words, time_in_words

TALL = 24  # the height of a bar
AFTER = 76  # the room behind the longest bar, for its sum
CLASSES = ("forward", "recompute", "starting", "idle", "receive", "gathering", "communication", "update")
PART_CLASSES: dict[str, str] = dict(zip(PARTS, CLASSES, strict=True))


def memory(bars: Mapping[str, Memory], budget: int | None = None) -> Drawing:
    """Draw one bar for each named `Memory`, split into parameters, gradients, optimizer and activations.

    A dashed line marks the `budget` in bytes, if there is one.
    """
    largest = {name: max(MEMORY, key=lambda part: getattr(bar, part)) for name, bar in bars.items()}
    words = "Memory bars: " + ", ".join(f"{name} (most is {part})" for name, part in largest.items())
    if budget is not None:
        over = [name for name, bar in bars.items() if bar.total > budget]
        words += f"; above the budget of {memory_in_words(budget)}: {', '.join(over) or 'none'}"
    shapes, height = memory_bars(bars, budget, "budget")
    return Drawing(shapes, SHEET, height, words)


def memory_bars(bars: Mapping[str, Memory], budget: int | None, name_of_budget: str) -> tuple[str, float]:
    """Return the shapes of `memory`, and their height."""
    left = max(map(breadth, bars)) + 12
    scale = (SHEET - AFTER - left) / max([budget or 1, *(memory.total for memory in bars.values())])
    shown = [part for part in MEMORY if any(getattr(memory, part) for memory in bars.values())]
    shapes, y = [legend([(part, part) for part in shown], 0, 16)], 40.0
    for name, memory in bars.items():
        sizes = {part: getattr(memory, part) for part in MEMORY}
        parts = [(part, size * scale, memory_in_words(size)) for part, size in sizes.items()]
        shapes += [text(0, y + 16.5, name), bar(left, y, TALL, parts, memory_in_words(memory.total))]
        y += TALL + 10
    if budget:
        x = left + budget * scale
        shapes += [line(x, 32, x, y, "dashed"), text(x, y + 13, name_of_budget, "ink", "end")]
    return "".join(shapes), y + 18


TIME_LEFT, TIME_WIDTH = 66, 320
MEMORY_LEFT, MEMORY_WIDTH = 410, 284


def placement(placements: Mapping[str, Placement], costs: Sequence[BlockCost]) -> Drawing:
    """Draw each named placement as one bar per stage, split into its blocks: time on the left, memory on the right.

    The dashed lines mark the slowest stage, which sets the pace, and the largest, which must fit on a device.
    """
    steps = {name: step_cost(placement, costs) for name, placement in placements.items()}
    seconds, size = (max(getattr(step, name) for step in steps.values()) or 1 for name in ("seconds", "bytes"))
    times = [cost.seconds * TIME_WIDTH / seconds for cost in costs]
    sizes = [cost.bytes * MEMORY_WIDTH / size for cost in costs]
    shapes, words, top = [], [], 20.0
    for name, placement in placements.items():
        fact = f"{name}: {counted(placement.hops, 'hop')}, slowest stage {time_in_words(steps[name].seconds)}"
        largest = f"largest {memory_in_words(steps[name].bytes)}"
        words.append(f"{fact}, {largest}")
        shapes += [text(0, top, fact, "ink strong"), text(MEMORY_LEFT, top, largest, "ink strong")]
        shapes += [text(0, top + 24 + 30 * stage, f"stage {stage}") for stage in range(placement.stages)]
        shapes += [stage_bars(placement, times, TIME_LEFT, top), stage_bars(placement, sizes, MEMORY_LEFT, top)]
        top += 30 * placement.stages + 38
    return Drawing("".join(shapes), SHEET, top - 24, "Placements: " + "; ".join(words))


def stage_bars(placement: Placement, widths: Sequence[float], left: float, top: float) -> str:
    """Draw one bar per stage, split into its blocks; the dashed line marks the longest."""
    names = ["embedding", *map(str, range(1, len(widths) - 1)), "head"]
    kinds = {"embedding": "way-in", "head": "way-out"}
    shapes, longest = [], 0.0
    for stage in range(placement.stages):
        blocks = placement.blocks_of(stage)
        parts = [(kinds.get(names[block], "layer"), widths[block], names[block]) for block in blocks]
        shapes.append(bar(left, top + 8 + 30 * stage, TALL, parts))
        longest = max(longest, sum(widths[block] for block in blocks))
    x = left + longest
    return "".join([*shapes, line(x, top + 4, x, top + 8 + 30 * placement.stages, "dashed")])


def plan_bars(plans: Sequence[Plan] | Explanation) -> Drawing:
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
