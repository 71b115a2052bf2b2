"""Place the blocks of a model on stages by hand, then compare with the solver."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.pictures.picture import block_name
from course_lib.pictures.widgets.explorer import Button, Explorer, slider
from course_lib.pictures.widgets.svg import CHARACTER, Drawing, box, line, text
from course_lib.planning.placement import BlockCost, Placement, StepCost, balanced, step_cost
from course_lib.words import memory_in_words, time_in_words

TIME_LEFT, TIME_WIDTH = 66, 340
MEMORY_LEFT, MEMORY_WIDTH = 440, 220
ROW, TALL = 30, 24


def explore_placement(costs: Sequence[BlockCost], stages: int) -> PlacementExplorer:
    """Place the blocks on stages with a slider for each cut, and compare with the solver."""
    return PlacementExplorer(costs, stages)


class PlacementExplorer(Explorer):
    """Your placement and, on request, the solver's below it, with the time and the memory of each stage."""

    title = "Place the blocks of a model on stages"
    help = "Move the cuts until the slowest stage is as fast as you can make it. Then compare with the solver."

    def __init__(self, costs: Sequence[BlockCost], stages: int) -> None:
        self.costs = tuple(costs)
        if not 2 <= stages <= len(self.costs):
            raise ValueError(f"stages={stages}: {len(self.costs)} blocks can be cut into 2 to {len(self.costs)} stages")
        self.best = balanced(self.costs, stages)
        self.moved_a_cut, self.compared, self.news = False, False, ""
        begins = range(1, len(self.costs))
        super().__init__(
            [
                slider(f"cut_{stage}", f"stage {stage} begins at block", begins, stage * len(self.costs) // stages)
                for stage in range(1, stages)
            ],
            [Button("compare", "Compare with the solver")],
        )

    def changed(self, names: set[str]) -> None:
        """Remember that you have moved a cut, so that there is something to compare."""
        self.moved_a_cut, self.news = self.moved_a_cut or bool(names), ""

    def press_compare(self) -> None:
        """Show the solver's placement from now on, if you have moved a cut."""
        self.compared = self.moved_a_cut
        self.news = "" if self.compared else "First move a cut. "

    @property
    def yours(self) -> Placement:
        """Return the placement on the sliders. A cut that would leave a stage empty moves to the nearest place that
        does not.
        """
        return Placement.of_cuts(len(self.costs), rising(list(self.values.values()), len(self.costs)))

    def showcase(self) -> Drawing:
        """Return the comparison, because a reader of a still picture cannot move a cut first."""
        return self.draw(compared=True)

    def draw(self, compared: bool = False) -> Drawing:
        """Draw your placement and, once `compared`, the solver's."""
        placements = {"yours": self.yours, "the solver's": self.best}
        steps = {name: step_cost(placement, self.costs) for name, placement in placements.items()}
        seconds, size = (max(getattr(step, name) for step in steps.values()) for name in ("seconds", "bytes"))
        compared = compared or self.compared
        shapes, top = [], 22.0
        for name, placement in placements.items() if compared else [("yours", self.yours)]:
            slowest, largest = time_in_words(steps[name].seconds), memory_in_words(steps[name].bytes)
            hops = f"{placement.hops} {'hop' if placement.hops == 1 else 'hops'}"
            shapes += [
                text(0, top, f"{name}: {hops}, slowest stage {slowest}", "ink strong"),
                text(MEMORY_LEFT, top, f"largest {largest}", "ink strong"),
                _bars(placement, [cost.seconds for cost in self.costs], TIME_LEFT, TIME_WIDTH / (seconds or 1), top),
                _bars(placement, [cost.bytes for cost in self.costs], MEMORY_LEFT, MEMORY_WIDTH / (size or 1), top),
            ]
            shapes += [text(0, top + 24 + ROW * stage, f"stage {stage}") for stage in range(placement.stages)]
            top += ROW * placement.stages + 38
        words = _score(*steps.values()) if compared else self.news + _facts(steps["yours"])
        return Drawing("".join(shapes), MEMORY_LEFT + MEMORY_WIDTH + 60, top - 10, words)


def _facts(yours: StepCost) -> str:
    slowest, largest = time_in_words(yours.seconds), memory_in_words(yours.bytes)
    return f"Your slowest stage takes {slowest}, your largest has {largest}."


def _score(yours: StepCost, best: StepCost) -> str:
    return (
        f"Your slowest stage takes {_ratio(yours.seconds, best.seconds)} times the solver's, "
        f"your largest has {_ratio(yours.bytes, best.bytes)} times the memory of its largest."
    )


def _ratio(yours: float, best: float) -> str:
    return f"{yours / best:.2f}" if best else "1.00"


def rising(cuts: Sequence[int], blocks: int) -> list[int]:
    """Return the cuts, moved as little as necessary for every stage to have a block."""
    moved = [0]
    for number, cut in enumerate(cuts, start=1):
        highest = blocks - (len(cuts) - number) - 1  # each stage after this one needs a block too
        moved.append(min(max(cut, moved[-1] + 1), highest))
    return moved[1:]


def _bars(placement: Placement, values: Sequence[float], left: float, scale: float, top: float) -> str:
    """Draw one bar per stage, split into its blocks; the dashed line marks the longest."""
    shapes, bar_ends = [], [left] * placement.stages
    for place, (stage, value) in enumerate(zip(placement.stage_of, values, strict=True)):
        name, class_ = block_name(place, len(values))
        width, y = value * scale, top + 8 + ROW * stage
        shapes.append(box(bar_ends[stage], y, max(0.0, width - 1), TALL, class_))
        if len(name) * CHARACTER + 4 <= width:
            shapes.append(text(bar_ends[stage] + width / 2, y + 16.5, name, "on-light", "middle"))
        bar_ends[stage] += width
    longest = max(bar_ends)
    shapes.append(line(longest, top + 4, longest, top + 8 + ROW * placement.stages, "dashed"))
    return "".join(shapes)
