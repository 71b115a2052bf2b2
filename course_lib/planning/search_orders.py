"""Orders for the search: the steps as numbers, starting points (named and greedy), and moves that make one better."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random

from course_lib.planning.actions import Action, Step
from course_lib.planning.schedule import Schedule, dependencies
from course_lib.planning.schedules import SCHEDULES, make_schedule, unit
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
            for source in needed:
                self.followers[source].append(step)
        self.producer = [self._from_another_stage(step) for step in range(len(self.steps))]
        self.grows = [self._grows(stage, action) for stage, action in self.steps]
        self.order = self._in_order()
        self.first_micro_batch = [step for step in self.order if not self.steps[step][1].micro_batch]
        self.room = float("inf") if memory is None else memory * example.pieces + ROUNDING

    def _from_another_stage(self, step: int) -> int:
        """Return the step on another stage that this one needs; -1 if there is none."""
        return next((source for source in self.needs[step] if self.stage[source] != self.stage[step]), -1)

    def _grows(self, stage: int, action: Action) -> int:
        """Return how many more pieces the stage holds after this step; negative if fewer."""
        change = {"F": 1, "R": 0, "W": -1, "B": 0 if (stage, action.piece) in self.example.split else -1}
        return change[action.kind]

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

        In each row, a step must come after everything that it needs from the same stage.
        """
        ends = [-1.0] * len(self.steps)
        seconds, producer, link = self.seconds, self.producer, self.costs.link
        free, heads, remaining = [0.0] * len(rows), [0] * len(rows), len(self.steps)
        while remaining:
            before = remaining
            for stage, row in enumerate(rows):
                start, place = free[stage], heads[stage]
                for step in row[place:]:
                    if producer[step] >= 0:
                        arrival = ends[producer[step]]
                        if arrival < 0:
                            break
                        start = max(start, arrival + link)
                    start += seconds[step]
                    ends[step] = start
                    place += 1
                remaining -= place - heads[stage]
                free[stage], heads[stage] = start, place
            if remaining == before:
                return None
        return ends

    def longest_after(self) -> list[float]:
        """Return, for each step, the least time from its end until everything is done."""
        after = [0.0] * len(self.steps)
        for step in reversed(self.order):
            for needed in self.needs[step]:
                length = self.link(step, needed) + self.seconds[step] + after[step]
                after[needed] = max(after[needed], length)
        return after

    def longest_before(self) -> list[float]:
        """Return each step's earliest start, if stages could run any number of steps at once."""
        before = [0.0] * len(self.steps)
        for step in self.order:
            arrivals = [before[source] + self.seconds[source] + self.link(step, source) for source in self.needs[step]]
            before[step] = max(arrivals, default=0.0)
        return before

    def _in_order(self) -> Sequence[int]:
        """Return all steps in topological order: each one after the steps that it needs."""
        missing = [len(needed) for needed in self.needs]
        order = [step for step, count in enumerate(missing) if not count]
        for step in order:
            for follower in self.followers[step]:
                missing[follower] -= 1
                if not missing[follower]:
                    order.append(follower)
        return order


PREFERENCES = ("BFW", "FBW", "longest")  # the kind of step that goes first, or the step with the longest path after it
PATIENCE = (0.0, 0.5, 1.0)  # how long a stage waits for a better step, as a share of the step it could do now


def one_at_a_time(stages: int, micro_batches: int, chunks: int, virtual: int, layout: str, *, split: bool) -> Schedule:
    """Return the schedule that finishes each micro-batch before it starts the next: slow, but with the least memory."""
    row: list[Action] = []
    for m in range(micro_batches):
        for v in range(virtual):
            row += unit("F", m, chunks, v)
        for v in reversed(range(virtual)):
            row += unit("B", m, chunks, v)
    schedule = Schedule("one at a time", (tuple(row),) * stages, micro_batches, chunks, virtual, layout)
    return split_backwards(schedule) if split else schedule


def split_backwards(schedule: Schedule) -> Schedule:
    """Return the same order with every backward pass split, and immediately followed by its weight gradients."""
    rows = []
    for stage, row in enumerate(schedule.stages):
        new: list[Action] = []
        for action in row:
            new.append(action)
            if action.kind == "B" and (stage, action.piece) not in schedule.split:
                new.append(replace(action, kind="W"))
        rows.append(tuple(new))
    return replace(schedule, stages=tuple(rows))


def named_schedules(example: Schedule, split: bool) -> Iterator[Schedule]:
    """Yield every named schedule with the sizes and layout of `example`; `split` splits all backward passes."""
    for name in SCHEDULES:
        virtual = example.virtual if name in ("interleaved", "looped-bfs") else None
        schedule = make_schedule(name, len(example.stages), example.micro_batches, example.chunks, virtual)
        if (schedule.virtual, schedule.layout) != (example.virtual, example.layout) or (schedule.split and not split):
            continue
        yield split_backwards(schedule) if split else schedule


def greedy_orders(problem: Problem) -> Iterator[Rows]:
    """Yield greedy orders: each stage does the most urgent step it can, for several definitions of urgency."""
    stages, pieces = len(problem.example.stages), problem.example.pieces // problem.example.micro_batches
    from_here = [(stages - stage) * pieces for stage in range(stages)]
    limits = [[problem.room] * stages]
    for counts in (from_here, [from_here[0]] * stages, [2 * count - 1 for count in from_here]):
        limits.append([min(problem.room, max(count, pieces)) for count in counts])
    for preference, patience, limit, careful in product(PREFERENCES, PATIENCE, limits, (False, True)):
        rows = Greedy(problem, preference, patience, limit, careful).rows()
        if rows is not None:
            yield rows


class Greedy:
    """A greedy scheduler: stages do what they can, most urgent first, while they hold less than their limit.

    A `careful` stage starts a micro-batch only if there is room for all its pieces, so that it can always finish.
    Otherwise a stage may start more, and get stuck.
    """

    def __init__(self, problem: Problem, preference: str, patience: float, limits: list[float], careful: bool) -> None:
        self.problem, self.patience, self.limits, self.careful = problem, patience, limits, careful
        after = problem.longest_after()
        self.urgency = [_urgency(problem, step, preference, after[step]) for step in range(len(after))]
        self.free, self.held = [0.0] * len(limits), [0] * len(limits)
        self.pieces_per_micro_batch = problem.example.pieces // problem.example.micro_batches

    def rows(self) -> Rows | None:
        """Return the resulting order, or None if stages at their memory limit wait for each other."""
        problem = self.problem
        rows: Rows = [[] for _ in self.limits]
        missing, ends = [len(needed) for needed in problem.needs], [0.0] * len(problem.needs)
        arrival = {step: 0.0 for step, count in enumerate(missing) if not count}
        while arrival:
            chosen = self._next_step(arrival)
            if chosen is None:
                return None
            stage = problem.stage[chosen]
            self.free[stage] = ends[chosen] = max(self.free[stage], arrival.pop(chosen)) + problem.seconds[chosen]
            self.held[stage] += self._more(chosen)
            rows[stage].append(chosen)
            for follower in problem.followers[chosen]:
                missing[follower] -= 1
                if not missing[follower]:
                    arrivals = (ends[source] + problem.link(follower, source) for source in problem.needs[follower])
                    arrival[follower] = max(arrivals)
        return rows

    def _more(self, step: int) -> int:
        """Return how many more pieces the stage holds after this step, or has reserved room for."""
        action = self.problem.steps[step][1]
        if not self.careful or action.kind != "F":
            return self.problem.grows[step]
        return 0 if action.chunk or action.virtual else self.pieces_per_micro_batch

    def _next_step(self, arrival: dict[int, float]) -> int | None:
        """Return the most urgent step that the first free stage can start soon; None if no stage can start any."""
        startable: dict[int, list[tuple[float, int]]] = {}
        for step, time in arrival.items():
            stage, more = self.problem.stage[step], self._more(step)
            if more <= 0 or self.held[stage] + more <= self.limits[stage]:
                startable.setdefault(stage, []).append((max(self.free[stage], time), step))
        if not startable:
            return None
        start, soonest = min(min(steps) for steps in startable.values())
        soon = start + self.patience * self.problem.seconds[soonest]
        choices = [step for time, step in startable[self.problem.stage[soonest]] if time <= soon]
        return min(choices, key=lambda step: self.urgency[step])


def _urgency(problem: Problem, step: int, preference: str, remaining: float) -> tuple[float, float, float]:
    """Return a sort key; smaller is more urgent. Weight gradients come last, because no step waits for them."""
    action = problem.steps[step][1]
    if preference == "longest":
        return (float(action.kind == "W"), -remaining, action.micro_batch)
    return (float(preference.index(action.kind)), action.micro_batch, -remaining)


WARMTH = 0.03  # how much longer, as a share of its time, an order may get at first, to escape a local minimum


def improved(
    problem: Problem, rows: Rows, tries: int, chance: Random, enough: float, continue_after: Callable[[int], bool]
) -> tuple[float, Rows]:
    """Return the best time found in `tries` tries, and its order. Worse orders are accepted less and less often."""
    rows = [list(row) for row in rows]
    best, best_rows = _time(problem, rows), [list(row) for row in rows]
    current = best
    for number in range(tries):
        if best <= enough + ROUNDING or not continue_after(1):
            break
        stage, old = _moved(problem, rows, chance)
        if old is None:
            continue
        time = _time(problem, rows)
        if time <= current + WARMTH * best * (1 - number / tries) * chance.random() ** 2:
            current = time
            if time < best - ROUNDING:
                best, best_rows = time, [list(row) for row in rows]
        else:
            rows[stage] = old
    return best, best_rows


def _time(problem: Problem, rows: Rows) -> float:
    ends = problem.ends(rows)
    return float("inf") if ends is None else max(ends)


def _moved(problem: Problem, rows: Rows, chance: Random) -> tuple[int, list[int] | None]:
    """Move a random action within its stage's row. Return the stage and its old row, or None if nothing moved."""
    stage = chance.randrange(len(rows))
    row = rows[stage]
    place = chance.randrange(len(row))
    step = row[place]
    required, followers = problem.needs[step], problem.followers[step]
    earliest, latest = place, place
    while earliest and row[earliest - 1] not in required:
        earliest -= 1
    while latest + 1 < len(row) and row[latest + 1] not in followers:
        latest += 1
    goal = chance.randint(earliest, latest)
    new = row[:place] + row[place + 1 :]
    new.insert(goal, step)
    if goal == place or not problem.fits(new):
        return stage, None
    rows[stage] = new
    return stage, row
