"""The steps to order: what each one costs, needs and holds, in lists of numbers for fast lookup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from course_lib.planning.schedules import Action, Schedule, Step, dependencies
from course_lib.planning.simulation import ActionCosts

Rows = list[list[int]]  # the numbers of each stage's steps, in order
ROUNDING = 1e-9


class Problem:
    """All steps of a schedule, as numbers; `example` is any schedule that has the same steps."""

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
        """Return the step whose message this one waits for; -1 if there is none."""
        return next((other for other in self.needs[step] if self.stage[other] != self.stage[step]), -1)

    def _grows(self, stage: int, action: Action) -> int:
        """Return how many more pieces the stage holds after this step; negative for fewer."""
        kept = {"F": 1, "R": 0, "W": -1, "B": 0 if (stage, action.piece) in self.example.split else -1}
        return kept[action.kind]

    def link(self, step: int, needed: int) -> float:
        """Return how long the result of `needed` is in flight to `step`."""
        return self.costs.link if self.stage[step] != self.stage[needed] else 0.0

    def rows_of(self, schedule: Schedule) -> Rows:
        """Return the schedule as rows of step numbers."""
        return [[self.number[stage, action] for action in row] for stage, row in enumerate(schedule.stages)]

    def schedule_of(self, rows: Rows, name: str) -> Schedule:
        """Return the schedule for these rows of step numbers."""
        example, stages = self.example, tuple(tuple(self.steps[step][1] for step in row) for row in rows)
        return Schedule(name, stages, example.micro_batches, example.chunks, example.virtual, example.layout)

    def fits(self, row: Iterable[int]) -> bool:
        """Return whether a stage that does these steps in order stays within the memory limit."""
        held = 0
        for step in row:
            held += self.grows[step]
            if held > self.room:
                return False
        return True

    def ends(self, rows: Rows) -> list[float] | None:
        """Return when each step ends if each starts as early as possible; None if the order deadlocks.

        What a step needs from its own stage must come before it in its row.
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
        """Return, for each step, the least time from its end until everything is done."""
        after = [0.0] * len(self.steps)
        for step in reversed(self.order):
            for needed in self.needs[step]:
                whole = self.link(step, needed) + self.seconds[step] + after[step]
                after[needed] = max(after[needed], whole)
        return after

    def longest_before(self) -> list[float]:
        """Return each step's earliest start, if stages could run any number of steps at once."""
        before = [0.0] * len(self.steps)
        for step in self.order:
            arrivals = [before[other] + self.seconds[other] + self.link(step, other) for other in self.needs[step]]
            before[step] = max(arrivals, default=0.0)
        return before

    def _in_order(self) -> Sequence[int]:
        """Return all steps in topological order: each after those that it needs."""
        missing = [len(needed) for needed in self.needs]
        order = [step for step, count in enumerate(missing) if not count]
        for step in order:
            for follower in self.followers[step]:
                missing[follower] -= 1
                if not missing[follower]:
                    order.append(follower)
        return order
