"""Bars of memory, of stages with their blocks, and of plans; widgets that change a memory, or place the blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from course_lib.lstm.memory import OPTIMIZERS, PRECISIONS, SHARDED, BatchSize, Memory, Savings, lstm_size, predict_with
from course_lib.pictures.picture import MEMORY
from course_lib.pictures.svg import SHEET, Drawing, bar, breadth, legend, line, table, text
from course_lib.pictures.widgets.explorer import Button, Explorer, choice, powers_of_two, slider
from course_lib.planning.placement import BlockCost, Placement, balanced, step_cost
from course_lib.planning.plan import PARTS, Plan
from course_lib.planning.planner import Explanation
from course_lib.words import counted, memory_in_words, time_in_words

TALL = 24  # the height of a bar
AFTER = 76  # the room behind the longest bar, for its sum
CLASSES = ("forward", "recompute", "starting", "idle", "receive", "gathering", "communication", "update")
PART_CLASSES: dict[str, str] = dict(zip(PARTS, CLASSES, strict=True))
DEVICES = {0: "no limit", 8: "8 GiB", 24: "24 GiB", 80: "80 GiB", 141: "141 GiB"}


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


class MemoryExplorer(Explorer):
    """Show what fills the memory of one rank: widths, lengths, optimizer, precision, recomputation, sharding.

    The top bar shows the current memory, and the bar below it the memory before the last change.
    """

    title = "The memory of a training step"

    def __init__(self) -> None:
        self.now: Memory | None = None
        super().__init__(
            [
                slider("hidden", "hidden units", powers_of_two(64, 16384), 1024),
                slider("layers", "layers", [1, 2, 4, 8, 16, 32], 4),
                slider("vocabulary", "vocabulary", [100, 1000, 10_000, 50_000], 10_000),
                slider("steps", "steps", powers_of_two(8, 2048), 128),
                slider("sequences", "sequences per rank", powers_of_two(1, 1024), 64),
                choice("optimizer", "optimizer", list(OPTIMIZERS), "Adam"),
                choice("precision", "precision", list(PRECISIONS), "float32"),
                choice("recompute", "activations", {False: "kept", True: "recomputed, layer by layer"}, False),
                choice("sharded", "sharded over ranks", list(SHARDED), "nothing"),
                slider("ranks", "ranks", powers_of_two(1, 64), 8),
                choice("device", "memory of a device", DEVICES, 8),
            ]
        )

    def memory(self) -> Memory:
        """Return the memory that one rank needs."""
        model = lstm_size(*(self.values[name] for name in ("vocabulary", "hidden", "layers")))
        size = BatchSize(self.values["steps"], self.values["sequences"])
        names = ("optimizer", "precision", "recompute", "sharded", "ranks")
        return predict_with(model, size, Savings(**{name: self.values[name] for name in names}))

    def changed(self, names: set[str]) -> None:
        """Save the previous memory for comparison."""
        if (now := self.memory()) != self.now:
            self.before, self.now = self.now, now

    def draw(self) -> Drawing:
        now, size = self.memory(), self.values["device"]
        bars = {"now": now, **({"before": self.before} if self.before else {})}
        shapes, height = memory_bars(bars, size * 2**30, f"a device: {DEVICES[size]}")
        rows = []
        for part in (*MEMORY, "total"):
            rows.append([part, *(memory_in_words(getattr(memory, part)) for memory in bars.values())])
        most = max(MEMORY, key=lambda part: getattr(now, part))
        words = f"{memory_in_words(now.total)} on each rank; most of it, {getattr(now, most) / now.total:.0%}, {most}."
        if size:
            room = now.total / (size * 2**30)
            words += f" It fits: {room:.0%} of the device." if room <= 1 else f" Too much: {room:.1f} times the device."
        if self.before:
            moved = {part: getattr(now, part) - getattr(self.before, part) for part in MEMORY}
            changed = [f"{part} {'+' if by > 0 else '-'}{memory_in_words(abs(by))}" for part, by in moved.items() if by]
            words += f" The last change: {', '.join(changed) or 'nothing'}."
        return Drawing(shapes, SHEET, height, words, table(["part", *bars], rows, "Memory of one rank"))


explore_memory = MemoryExplorer


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


class PlacementExplorer(Explorer):
    """Place the blocks on stages with a slider for each cut; a button shows the solver's placement below yours."""

    title = "Place the blocks of a model on stages"
    help = "Move the cuts until the slowest stage is as fast as you can make it. Then compare with the solver."

    def __init__(self, costs: Sequence[BlockCost], stages: int) -> None:
        self.costs = tuple(costs)
        if not 2 <= stages <= len(self.costs):
            raise ValueError(f"stages={stages}: {len(self.costs)} blocks can be cut into 2 to {len(self.costs)} stages")
        self.best = balanced(self.costs, stages)
        self.compared = False
        begins = range(1, len(self.costs))
        super().__init__(
            [
                slider(f"cut_{stage}", f"stage {stage} begins at block", begins, stage * len(self.costs) // stages)
                for stage in range(1, stages)
            ],
            [Button("compare", "Compare with the solver")],
        )

    def press_compare(self) -> None:
        """Show the solver's placement from now on."""
        self.compared = True

    @property
    def yours(self) -> Placement:
        """Return the placement on the sliders. A cut that would leave a stage empty moves just far enough."""
        return Placement.of_cuts(len(self.costs), rising(list(self.values.values()), len(self.costs)))

    def showcase(self) -> Drawing:
        """Return the comparison, because a reader of a still picture cannot move a cut first."""
        return self.draw(compared=True)

    def draw(self, compared: bool = False) -> Drawing:
        """Draw your placement and, once `compared`, the solver's."""
        yours, best = (step_cost(placement, self.costs) for placement in (self.yours, self.best))
        if not (compared or self.compared):
            slowest, largest = time_in_words(yours.seconds), memory_in_words(yours.bytes)
            words = f"Your slowest stage takes {slowest}, your largest has {largest}."
            return replace(placement({"yours": self.yours}, self.costs), alt=words)
        words = (
            f"Your slowest stage takes {yours.seconds / best.seconds if best.seconds else 1:.2f} times the solver's, "
            f"your largest has {yours.bytes / best.bytes if best.bytes else 1:.2f} times the memory of its largest."
        )
        return replace(placement({"yours": self.yours, "the solver's": self.best}, self.costs), alt=words)


explore_placement = PlacementExplorer


def rising(cuts: Sequence[int], blocks: int) -> list[int]:
    """Return the cuts, moved as little as necessary for every stage to have a block."""
    moved = [0]
    for number, cut in enumerate(cuts, start=1):
        highest = blocks - (len(cuts) - number) - 1  # each stage after this one needs a block too
        moved.append(min(max(cut, moved[-1] + 1), highest))
    return moved[1:]


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
