"""Place the blocks of a model on stages by hand, then compare with the solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from course_lib.pictures.bars import placement
from course_lib.pictures.svg import Drawing
from course_lib.pictures.widgets.explorer import Button, Explorer, slider
from course_lib.planning.placement import BlockCost, Placement, balanced, step_cost
from course_lib.words import memory_in_words, time_in_words


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
