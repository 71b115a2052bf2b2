"""Stages with their blocks as bars of time and memory, and a widget that places blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from course_lib.drawing.explorer import Button, Explorer, slider
from course_lib.drawing.svg import SHEET, Drawing, bar, line, text
from course_lib.model_parallel.placement import BlockCost, Placement, balanced, step_cost
from course_lib.one_device.memory_widget import TALL
from course_lib.runtime.words import counted, memory_in_words, time_in_words

TIME_LEFT, TIME_WIDTH = 66, 320
MEMORY_LEFT, MEMORY_WIDTH = 410, 284


def draw_placement(placements: Mapping[str, Placement], costs: Sequence[BlockCost]) -> Drawing:
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
            return replace(draw_placement({"yours": self.yours}, self.costs), alt=words)
        words = (
            f"Your slowest stage takes {yours.seconds / best.seconds if best.seconds else 1:.2f} times the solver's, "
            f"your largest has {yours.bytes / best.bytes if best.bytes else 1:.2f} times the memory of its largest."
        )
        return replace(draw_placement({"yours": self.yours, "the solver's": self.best}, self.costs), alt=words)


explore_placement = PlacementExplorer


def rising(cuts: Sequence[int], blocks: int) -> list[int]:
    """Return the cuts, moved as little as necessary for every stage to have a block."""
    moved = [0]
    for number, cut in enumerate(cuts, start=1):
        highest = blocks - (len(cuts) - number) - 1  # each stage after this one needs a block too
        moved.append(min(max(cut, moved[-1] + 1), highest))
    return moved[1:]
