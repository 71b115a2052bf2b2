"""The work to be put in order: what each step takes, needs and holds, as numbers that can be looked up fast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from course_lib.planning.schedules import Action, Schedule, Step, dependencies
from course_lib.planning.simulation import ActionCosts

Rows = list[list[int]]  # for each stage the numbers of its steps, in order
ROUNDING = 1e-9


class Problem:
    """All steps of a schedule of these sizes. A step is a number; `example` is any schedule that has the same steps."""

    def __init__(self, example: Schedule, costs: ActionCosts, memory: float | None = None) -> None:
        costs.check_for(example)
        self.example, self.costs = example, costs
        self.steps: list[Step] = [(stage, action) for stage, row in enumerate(example.stages) for action in row]
        self.number = {step: place for place, step in enumerate(self.steps)}
        self.stage = [stage for stage, _ in self.steps]
        self.seconds = [costs.of(action, stage, example) for stage, action in self.steps]
        self.needs = [
            [self.number[step] for step in dependencies(action, stage, example)] for stage, action in self.steps
        ]
        self.followers: list[list[int]] = [[] for _ in self.steps]
        for step, needed in enumerate(self.needs):
            for other in needed:
                self.followers[other].append(step)
        self.giver = [self._from_another_stage(step) for step in range(len(self.steps))]
        self.grows = [self._grows(stage, action) for stage, action in self.steps]
        self.order = self._in_order()
        self.first_micro_batch = [step for step in self.order if not self.steps[step][1].micro_batch]
        self.room = float("inf") if memory is None else memory * example.pieces + ROUNDING

    def _from_another_stage(self, step: int) -> int:
        """The step whose message this one waits for; -1 if none."""
        return next((other for other in self.needs[step] if self.stage[other] != self.stage[step]), -1)

    def _grows(self, stage: int, action: Action) -> int:
        """By how many pieces its stage holds more, or less, after this step."""
        kept = {"F": 1, "R": 0, "W": -1, "B": 0 if (stage, action.piece) in self.example.split else -1}
        return kept[action.kind]

    def link(self, step: int, needed: int) -> float:
        """How long what `step` needs is under way to it."""
        return self.costs.link if self.stage[step] != self.stage[needed] else 0.0

    def rows_of(self, schedule: Schedule) -> Rows:
        """The same schedule in numbers."""
        return [[self.number[stage, action] for action in row] for stage, row in enumerate(schedule.stages)]

    def schedule_of(self, rows: Rows, name: str) -> Schedule:
        """The schedule that these numbers stand for."""
        example, stages = self.example, tuple(tuple(self.steps[step][1] for step in row) for row in rows)
        return Schedule(name, stages, example.micro_batches, example.chunks, example.virtual, example.layout)

    def fits(self, row: Iterable[int]) -> bool:
        """Whether a stage that does these steps in this order never holds more than there is room for."""
        held = 0
        for step in row:
            held += self.grows[step]
            if held > self.room:
                return False
        return True

    def ends(self, rows: Rows) -> list[float] | None:
        """When each step ends, if each starts as early as can be; None if they wait for each other.

        What a step needs of its own stage must come before it in its row.
        """
        ends = [-1.0] * len(self.steps)
        seconds, giver, link = self.seconds, self.giver, self.costs.link
        free, heads, left = [0.0] * len(rows), [0] * len(rows), len(self.steps)
        while left:
            before = left
            for stage, row in enumerate(rows):
                start, place = free[stage], heads[stage]
                for step in row[place:]:
                    if giver[step] >= 0:
                        arrival = ends[giver[step]]
                        if arrival < 0:
                            break
                        start = max(start, arrival + link)
                    start += seconds[step]
                    ends[step] = start
                    place += 1
                left -= place - heads[stage]
                free[stage], heads[stage] = start, place
            if left == before:
                return None
        return ends

    def longest_after(self) -> list[float]:
        """For each step, how long it takes at least from its end until everything is done."""
        after = [0.0] * len(self.steps)
        for step in reversed(self.order):
            for needed in self.needs[step]:
                whole = self.link(step, needed) + self.seconds[step] + after[step]
                after[needed] = max(after[needed], whole)
        return after

    def longest_before(self) -> list[float]:
        """For each step, when it can start at the earliest, if nobody waited for a stage to be free."""
        before = [0.0] * len(self.steps)
        for step in self.order:
            arrivals = [before[other] + self.seconds[other] + self.link(step, other) for other in self.needs[step]]
            before[step] = max(arrivals, default=0.0)
        return before

    def _in_order(self) -> Sequence[int]:
        """All steps, each after those that it needs."""
        missing = [len(needed) for needed in self.needs]
        order = [step for step, count in enumerate(missing) if not count]
        for step in order:
            for follower in self.followers[step]:
                missing[follower] -= 1
                if not missing[follower]:
                    order.append(follower)
        return order
