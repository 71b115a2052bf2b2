"""Search for a good schedule: start from the named ones, and move single actions as long as that does no harm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, chain, product
from random import Random

from course_lib.pipeline.actions import Action, Step
from course_lib.pipeline.named_schedules import ANY_VIRTUAL, SCHEDULES, make_schedule, unit
from course_lib.pipeline.schedule import Schedule, checked_order, dependencies
from course_lib.pipeline.simulation import ActionCosts

Rows = list[list[int]]  # each stage's steps in order, as numbers
FARTHEST = 3  # places that an action moves at once: longer moves are rarely an improvement
ROUNDING = 1e-9


def find_schedule(
    stages: int,
    micro_batches: int,
    costs: ActionCosts,
    *,
    memory: float | None = None,
    virtual: int = 1,
    layout: str = "loop",
    split: bool = True,
    chunks: int = 1,
    tries: int = 24_000,
    seed: int = 0,
) -> Schedule:
    """Return a good schedule of these sizes in which no stage holds more than the share `memory` of the batch.

    It is never worse than a named schedule that fits, and often better. If it reaches `lower_bound`, it is optimal.
    With `split`, backward passes may be split: all of them, or none. The same seed finds the same schedule.
    """
    if memory is not None and memory * micro_batches < 1 - ROUNDING:
        raise ValueError(
            f"memory={memory:.3g} of the batch is less than one of {micro_batches} micro-batches: "
            f"give at least {1 / micro_batches:.3g}, or more micro-batches"
        )
    bound = lower_bound(stages, micro_batches, costs, chunks=chunks, virtual=virtual, layout=layout, split=split)
    kinds, chance, found = (False, True) if split else (False,), Random(seed), []
    for is_split in kinds:
        search = _Search(_one_at_a_time(stages, micro_batches, chunks, virtual, layout, is_split), costs, memory)
        starts = [rows for rows in search.named_orders() if all(map(search.fits, rows))]
        rows = search.climb(min(starts, key=search.makespan), tries // len(kinds), chance, bound)
        actions = tuple(tuple(search.steps[number][1] for number in row) for row in rows)
        found.append((search.makespan(rows), replace(search.example, name="found", stages=actions)))
    return min(found, key=lambda timed: timed[0])[1]


class _Search:
    """All steps of a schedule as numbers, so that an order of them is timed quickly."""

    def __init__(self, example: Schedule, costs: ActionCosts, memory: float | None) -> None:
        costs.check_for(example)
        self.example, self.link = example, costs.link
        self.steps: list[Step] = [(stage, action) for stage, row in enumerate(example.stages) for action in row]
        self.number = {step: place for place, step in enumerate(self.steps)}
        self.seconds = [costs.of(action, stage, example) for stage, action in self.steps]
        self.room = float("inf") if memory is None else memory * example.pieces + ROUNDING
        self.needs: list[set[int]] = []  # on the same stage
        self.sender: list[int] = []  # the step on another stage whose message this one needs; -1 if there is none
        for stage, action in self.steps:
            needed = dependencies(action, stage, example)
            self.needs.append({self.number[step] for step in needed if step[0] == stage})
            self.sender.append(next((self.number[step] for step in needed if step[0] != stage), -1))
        # How many more pieces a stage holds after each step: all backward passes are split, or none.
        grows = {"F": 1, "W": -1, "B": 0 if example.split else -1}
        self.grows = [grows[action.kind] for _, action in self.steps]

    def named_orders(self) -> Iterator[Rows]:
        """Yield this example and every named schedule with the same sizes, layout and kinds of actions."""
        example, schedules = self.example, [self.example]
        for name in SCHEDULES:
            virtual = example.virtual if name in ANY_VIRTUAL else None
            named = make_schedule(name, len(example.stages), example.micro_batches, example.chunks, virtual)
            schedules.append(_with_split_backwards(named) if example.split else named)
        kind = example.virtual, example.layout, bool(example.split)
        for schedule in schedules:
            if (schedule.virtual, schedule.layout, bool(schedule.split)) == kind:
                yield [[self.number[stage, action] for action in row] for stage, row in enumerate(schedule.stages)]

    def fits(self, row: list[int]) -> bool:
        """Return whether a stage that does these steps in order stays within the memory limit."""
        return max(accumulate(map(self.grows.__getitem__, row))) <= self.room

    def makespan(self, rows: Rows) -> float:
        """Return the time of this order, each step as early as possible; infinity if it deadlocks."""
        ends = [-1.0] * len(self.steps)
        free, heads, remaining = [0.0] * len(rows), [0] * len(rows), len(self.steps)
        while remaining:
            before = remaining
            for stage, row in enumerate(rows):
                now = free[stage]
                for step in row[heads[stage] :]:
                    sender = self.sender[step]
                    if sender >= 0:
                        if ends[sender] < 0:
                            break
                        now = max(now, ends[sender] + self.link)
                    now += self.seconds[step]
                    ends[step] = now
                    heads[stage] += 1
                    remaining -= 1
                free[stage] = now
            if remaining == before:
                return float("inf")
        return max(free)

    def climb(self, rows: Rows, tries: int, chance: Random, bound: float) -> Rows:
        """Return a better order: move random actions, and keep every move that does not make it slower."""
        rows, best = [list(row) for row in rows], self.makespan(rows)
        for _ in range(tries):
            if best <= bound + ROUNDING:
                break
            stage = chance.randrange(len(rows))
            row = rows[stage]
            rows[stage] = self.moved(row, chance)
            time = self.makespan(rows) if rows[stage] != row and self.fits(rows[stage]) else float("inf")
            if time > best + ROUNDING:
                rows[stage] = row
            else:
                best = time  # an equal time counts, too: most ways to a better order lead across a plateau
        return rows

    def moved(self, row: list[int], chance: Random) -> list[int]:
        """Return the row with one action moved a little, but not past what it needs, or what needs it."""
        place = chance.randrange(len(row))
        step = row[place]
        earliest = latest = place
        while earliest > max(0, place - FARTHEST) and row[earliest - 1] not in self.needs[step]:
            earliest -= 1
        while latest < min(len(row) - 1, place + FARTHEST) and step not in self.needs[row[latest + 1]]:
            latest += 1
        new = row[:place] + row[place + 1 :]
        new.insert(chance.randint(earliest, latest), step)
        return new


def _one_at_a_time(stages: int, micro_batches: int, chunks: int, virtual: int, layout: str, split: bool) -> Schedule:
    """Return the schedule that finishes each micro-batch before it starts the next: slow, but with the least memory."""
    row: list[Action] = []
    for m in range(micro_batches):
        row += [action for v in range(virtual) for action in unit("F", m, chunks, v)]
        row += [action for v in reversed(range(virtual)) for action in unit("B", m, chunks, v)]
    schedule = Schedule("one at a time", (tuple(row),) * stages, micro_batches, chunks, virtual, layout)
    return _with_split_backwards(schedule) if split else schedule


def _with_split_backwards(schedule: Schedule) -> Schedule:
    """Return the same order with every backward pass split, and immediately followed by its weight gradients."""
    if schedule.split:
        return schedule
    pairs = [[[a, replace(a, kind="W")] if a.kind == "B" else [a] for a in row] for row in schedule.stages]
    return replace(schedule, stages=tuple(tuple(chain(*row)) for row in pairs))


def lower_bound(
    stages: int,
    micro_batches: int,
    costs: ActionCosts,
    *,
    chunks: int = 1,
    virtual: int = 1,
    layout: str = "loop",
    split: bool = True,
) -> float:
    """Return a time that no schedule of these sizes can beat. With `split`, all its backward passes may be split."""
    examples = [_one_at_a_time(stages, 1, chunks, virtual, layout, is_split) for is_split in {False, split}]
    return min(_bound(example, micro_batches, costs) for example in examples)


def _bound(example: Schedule, micro_batches: int, costs: ActionCosts) -> float:
    """Return the longest time that a set of steps on one stage implies: earliest start, all the work, shortest rest."""
    # The micro-batches are equal, so `example` has only the first.
    costs.check_for(example)
    order = checked_order(example)
    seconds = {(stage, action): costs.of(action, stage, example) for stage, action in order}
    before, after = dict.fromkeys(order, 0.0), dict.fromkeys(order, 0.0)
    waits = [
        (needed, step, costs.link * (needed[0] != step[0]))
        for step in order
        for needed in dependencies(step[1], step[0], example)
    ]
    for needed, step, flight in waits:
        before[step] = max(before[step], before[needed] + seconds[needed] + flight)
    for needed, step, flight in reversed(waits):
        after[needed] = max(after[needed], flight + seconds[step] + after[step])
    most = 0.0
    for stage in range(len(example.stages)):
        steps = [step for step in order if step[0] == stage]
        # The sets to try: all steps that start no earlier than one of them, with no less left after them than another.
        for start, tail in product({before[step] for step in steps}, {after[step] for step in steps}):
            work = [seconds[step] for step in steps if before[step] >= start and after[step] >= tail]
            if work:
                most = max(most, start + micro_batches * sum(work) + tail)
    return most
