"""Which block goes on which stage: what each block costs, and how to divide the blocks among the stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_lib.core.model import SequenceModel


class CannotPlace(ValueError):
    """No placement meets the requirements. The message says what would work."""


@dataclass(frozen=True)
class BlockCost:
    """The time and memory that a block or a stage needs for one training step."""

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Placement:
    """The stage of each block, in order. Stages count from 0, and each has at least one block."""

    stage_of: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stage_of", tuple(self.stage_of))
        if sorted(set(self.stage_of)) != list(range(self.stages)) or not self.stage_of:
            raise ValueError(f"stage_of={self.stage_of}: give each block a stage; every stage from 0 up needs a block")

    @classmethod
    def of_cuts(cls, blocks: int, cuts: Sequence[int]) -> Placement:
        """Return a placement with consecutive blocks on each stage; a new stage begins at each block in `cuts`."""
        bounds = [0, *cuts, blocks]
        if any(start >= stop for start, stop in pairwise(bounds)):
            raise ValueError(f"cuts={tuple(cuts)}: give increasing numbers from 1 to {blocks - 1}, one per new stage")
        return cls(tuple(sum(place >= cut for cut in cuts) for place in range(blocks)))

    @property
    def stages(self) -> int:
        return 1 + max(self.stage_of, default=-1)

    @property
    def hops(self) -> int:
        """How often activations change stages on their way through the model, as gradients do on the way back."""
        return sum(stage != next_stage for stage, next_stage in pairwise(self.stage_of))

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The (start, stop) range of each stage's blocks, as `SequenceModel.part` takes them."""
        if list(self.stage_of) != sorted(self.stage_of):
            raise ValueError(f"{self.stage_of} is not one part per stage: blocks_of(stage) returns its blocks")
        sizes = map(self.stage_of.count, range(self.stages))
        return list(pairwise(accumulate(sizes, initial=0)))

    def blocks_of(self, stage: int) -> list[int]:
        """Return the indices of this stage's blocks."""
        return [place for place, owner in enumerate(self.stage_of) if owner == stage]


@dataclass(frozen=True)
class StepCost:
    """What one training step costs each stage."""

    stages: tuple[BlockCost, ...]

    @property
    def seconds(self) -> float:
        """The time of the slowest stage, which sets the pace of a full pipeline."""
        return max(cost.seconds for cost in self.stages)

    @property
    def bytes(self) -> int:
        """The memory of the largest stage: every device must have this much."""
        return max(cost.bytes for cost in self.stages)


def step_cost(placement: Placement, costs: Sequence[BlockCost]) -> StepCost:
    """Return what each stage needs for its blocks. Hops are not included, because their cost depends on the link."""
    if len(costs) != len(placement.stage_of):
        raise ValueError(f"{len(costs)} costs for {len(placement.stage_of)} blocks: give one for each block")
    rows = [[costs[place] for place in placement.blocks_of(stage)] for stage in range(placement.stages)]
    return StepCost(tuple(BlockCost(math.fsum(c.seconds for c in row), sum(c.bytes for c in row)) for row in rows))


def round_robin(blocks: int, stages: int) -> Placement:
    """Deal out the blocks: block 0 to stage 0, block 1 to stage 1, ... Often recommended, but has a hop per block."""
    _check_counts(blocks, stages)
    return Placement(tuple(place % stages for place in range(blocks)))


def equal_count(blocks: int, stages: int) -> Placement:
    """Put the same number of consecutive blocks on each stage. The first stages get one more if some are left over."""
    _check_counts(blocks, stages)
    share, extra = divmod(blocks, stages)
    return Placement.of_cuts(blocks, [stage * share + min(stage, extra) for stage in range(1, stages)])


def balanced(
    costs: Sequence[BlockCost],
    stages: int,
    memory: int | None = None,
    bytes_of: Callable[[int, range], float] | None = None,
) -> Placement:
    """Place consecutive blocks so that the slowest stage is as fast as possible, with at most `memory` bytes per stage.

    The result is exact. Among equally fast placements, it minimizes the memory of the largest stage. If the same blocks
    need more memory on one stage than on another, pass `bytes_of(stage, blocks)`; otherwise their bytes are summed.
    """
    blocks, limit = len(costs), math.inf if memory is None else memory
    _check_counts(blocks, stages)
    parts = [(start, stop) for stop in range(1, blocks + 1) for start in range(stop)]
    # fsum rounds only once, so parts with equal blocks are equally fast to the last bit.
    seconds = {(start, stop): math.fsum(cost.seconds for cost in costs[start:stop]) for start, stop in parts}
    added = {(start, stop): sum(cost.bytes for cost in costs[start:stop]) for start, stop in parts}

    def size(stage: int, part: Part) -> float:
        return bytes_of(stage, range(*part)) if bytes_of else added[part]

    def fitting_seconds(stage: int, part: Part) -> float:
        return seconds[part] if size(stage, part) <= limit else math.inf

    pace, _ = _smallest_largest(blocks, stages, fitting_seconds)
    if pace == math.inf:
        least, _ = _smallest_largest(blocks, stages, size)
        raise CannotPlace(
            f"no {stages} consecutive parts of these {blocks} blocks fit into {memory:,} bytes each: "
            f"at least {math.ceil(least):,} bytes would be needed"
        )

    def fast_size(stage: int, part: Part) -> float:
        needed = size(stage, part)
        return needed if seconds[part] <= pace and needed <= limit else math.inf

    return Placement.of_cuts(blocks, _smallest_largest(blocks, stages, fast_size)[1])


def smallest(blocks: int, stages: int, bytes_of: Callable[[int, range], float]) -> Placement:
    """Place consecutive blocks so that the fullest stage needs as little memory as possible, regardless of speed."""
    _check_counts(blocks, stages)
    _, cuts = _smallest_largest(blocks, stages, lambda stage, part: bytes_of(stage, range(*part)))
    return Placement.of_cuts(blocks, cuts)


Part = tuple[int, int]  # a range of blocks: start, and stop, which is not included


def _smallest_largest(blocks: int, stages: int, value: Callable[[int, Part], float]) -> tuple[float, list[int]]:
    """Cut the blocks into consecutive parts that minimize the largest value; return it, and the cuts.

    A part that is not allowed has the value infinity. Dynamic programming: best[stop] is the best way to cut the blocks
    before `stop` into the parts so far.
    """
    best: dict[int, tuple[float, list[int]]] = {0: (-math.inf, [])}
    for stage in range(stages):
        longer: dict[int, tuple[float, list[int]]] = {}
        for start, (largest, cuts) in best.items():
            for stop in range(start + 1, blocks - (stages - stage - 1) + 1):
                larger = max(largest, value(stage, (start, stop)))
                if stop not in longer or (larger, [*cuts, start]) < longer[stop]:
                    longer[stop] = larger, [*cuts, start]
        best = longer
    largest, cuts = best[blocks]
    return largest, cuts[1:]


def check_placement(placement: Placement, model: SequenceModel, ranks: int) -> None:
    """Raise ValueError if a placement does not fit the model or the ranks, or separates blocks that share a weight."""
    if len(placement.stage_of) != len(model):
        raise ValueError(f"a placement of {len(placement.stage_of)} blocks for a model of {len(model)}: place them all")
    if placement.stages != ranks:
        raise ValueError(f"a placement on {placement.stages} stages for {ranks} ranks: there is one rank per stage")
    first_user: dict[int, tuple[int, int]] = {}
    for (place, block), stage in zip(model.numbered(), placement.stage_of, strict=True):
        for parameter in block.parameters():
            other_place, other_stage = first_user.setdefault(id(parameter), (place, stage))
            if stage != other_stage:
                raise ValueError(
                    f"blocks {other_place} and {place} share a weight, but live on stages {other_stage} and {stage}: "
                    "place them on the same stage, or give each its own weight"
                )


def _check_counts(blocks: int, stages: int) -> None:
    if stages < 1:
        raise CannotPlace(f"stages={stages}: there must be at least one")
    if stages > blocks:
        raise CannotPlace(f"{blocks} blocks on {stages} stages: a stage needs a block, so give at most {blocks} stages")
