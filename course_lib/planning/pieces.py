"""How the work of a replica is cut: a schedule by name and size, prepared once to be timed for many plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from course_lib.planning.costs import ActionCosts
from course_lib.planning.schedules import Action, Schedule, make_schedule
from course_lib.planning.simulation import Stopwatch

Times = list[tuple[float, float]]  # (start, end) of each step, in the order of the stopwatch


@dataclass(frozen=True)
class Pieces:
    """A schedule of so many stages, micro-batches and chunks, with recomputation or without."""

    name: str
    stages: int
    micro_batches: int
    chunks: int = 1
    recompute: bool = False

    @property
    def prepared(self) -> Prepared:
        return _prepared(self)

    def __str__(self) -> str:
        cut = f"{self.micro_batches} micro-batch{'es' * (self.micro_batches > 1)}"
        cut += f" x {self.chunks} chunks" if self.chunks > 1 else ""
        again = ", recomputed" if self.recompute else ""
        return f"{self.name}, {cut}{again}" if self.stages > 1 else f"{cut}{again}"


class Prepared:
    """A schedule, its stopwatch, and what of it does not depend on costs."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.stopwatch = schedule, Stopwatch(schedule)
        self.held = [share.total for share in schedule.peak_share]  # per stage, of the replica's share of the batch

    @cached_property
    def inputs_held(self) -> list[float]:
        """Per stage, the share of its inputs that it keeps at once in order to compute forward passes again."""
        schedule = self.schedule
        again = [any(action.kind == "R" for action in row) for row in schedule.stages]
        most = [_most_under_way(row) if is_again else 0 for row, is_again in zip(schedule.stages, again, strict=True)]
        return [count / schedule.pieces for count in most]

    @cached_property
    def finals(self) -> list[list[tuple[int, int]]]:
        """Per stage, when the gradients of each of its parts are final: (position, number of that step), in order."""
        last: dict[int, tuple[int, int]] = {}
        for number, (stage, action) in enumerate(self.stopwatch.order):
            if action.kind in "BW":
                last[self.schedule.places.position(stage, action.virtual)] = (number, stage)
        found: list[list[tuple[int, int]]] = [[] for _ in self.schedule.stages]
        for position, (number, stage) in sorted(last.items(), key=lambda item: item[1]):
            found[stage].append((position, number))
        return found

    @cached_property
    def _counts(self) -> list[tuple[int, Action, int]]:
        """How often a stage does an action that costs as much as this one."""
        often = Counter(cost for _, cost, _ in self.stopwatch.steps)
        return [(*example, often[cost]) for cost, example in enumerate(self.stopwatch.examples)]

    def busy(self, costs: ActionCosts, kinds: str = "FBWR") -> list[float]:
        """How long each stage works, on actions of these kinds."""
        spent = [0.0] * len(self.schedule.stages)
        for stage, action, often in self._counts:
            if action.kind in kinds:
                spent[stage] += often * costs.of(action, stage, self.schedule)
        return spent

    def ends(self, times: Times) -> list[float]:
        """When each stage is done."""
        done = [0.0] * len(self.schedule.stages)
        for (stage, _), (_, end) in zip(self.stopwatch.order, times, strict=True):
            done[stage] = max(done[stage], end)
        return done


@lru_cache(maxsize=512)  # whoever compares networks asks for the same schedules again and again
def _prepared(pieces: Pieces) -> Prepared:
    sizes = pieces.stages, pieces.micro_batches, pieces.chunks
    return Prepared(make_schedule(pieces.name, *sizes, recompute=pieces.recompute))


def _most_under_way(row: tuple[Action, ...]) -> int:
    """Of how many pieces the forward pass is done and the backward pass is not, at most."""

    def counts() -> Iterator[int]:
        now = 0
        for action in row:
            now += (action.kind == "F") - (action.kind == "B")
            yield now

    return max(counts(), default=0)
