"""Search for a good schedule: start from all named and greedy ones, then move single actions."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from random import Random
from time import monotonic

from tqdm import tqdm

from course_lib.planning.schedule import Schedule
from course_lib.planning.search_orders import Problem, Rows, greedy_orders, improved, named_schedules, one_at_a_time
from course_lib.planning.simulation import ActionCosts

__all__ = ["find_schedule", "lower_bound"]

CHANCES = 4  # how many of the best starting points to improve


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
    tries: int = 20_000,
    seconds: float | None = None,
    seed: int = 0,
) -> Schedule:
    """Return a good schedule of these sizes in which no stage holds more than the share `memory` of the batch.

    It is never worse than a named schedule that fits, and often better. If it reaches `lower_bound`, it is optimal.
    With `split`, backward passes may be split: all of them, or none. The same seed and number of tries find the same
    schedule; `seconds` ends the search earlier.
    """
    _check_memory(memory, micro_batches)
    schedules: list[tuple[float, Schedule]] = []
    end = float("inf") if seconds is None else monotonic() + seconds
    kinds = (False, True) if split else (False,)
    quiet = os.environ.get("COURSE_LIB_LIVE") == "0"
    with tqdm(total=tries, desc="searching", delay=3, leave=False, disable=quiet) as bar:

        def continue_after(attempts: int) -> bool:
            if attempts:
                bar.update(attempts)
            return monotonic() < end

        for is_split in kinds:
            example = one_at_a_time(stages, micro_batches, chunks, virtual, layout, split=is_split)
            problem = Problem(example, costs, memory)
            schedules.append(_search(problem, is_split, tries // len(kinds), seed, continue_after))
    return min(schedules, key=lambda timed: timed[0])[1]


def _search(
    problem: Problem, split: bool, tries: int, seed: int, continue_after: Callable[[int], bool]
) -> tuple[float, Schedule]:
    """Return the time of the best schedule found with these steps, and the schedule."""
    starts = _starts(problem, split, continue_after)
    enough, chance = bound_of(problem), Random(seed)
    results = [improved(problem, rows, tries // len(starts), chance, enough, continue_after) for _, rows in starts]
    best, rows = min(results, key=lambda timed: timed[0])
    return best, problem.schedule_of(rows, "found")


def _starts(problem: Problem, split: bool, continue_after: Callable[[int], bool]) -> list[tuple[float, Rows]]:
    """Return the fastest starting orders that fit, with their times. One micro-batch at a time always fits."""
    orders = (problem.rows_of(schedule) for schedule in (problem.example, *named_schedules(problem.example, split)))
    timed: list[tuple[float, Rows]] = []
    for rows in chain(orders, greedy_orders(problem)):
        ends = problem.ends(rows)
        if ends is not None and all(map(problem.fits, rows)):
            timed.append((max(ends), rows))
        if not continue_after(0):
            break
    return sorted(timed, key=lambda timed_rows: timed_rows[0])[:CHANCES]


def _check_memory(memory: float | None, micro_batches: int) -> None:
    if memory is not None and memory * micro_batches < 1 - 1e-9:
        raise ValueError(
            f"memory={memory:.3g} of the batch is less than one of {micro_batches} micro-batches: "
            f"give at least {1 / micro_batches:.3g}, or more micro-batches"
        )


def lower_bound(
    stages: int,
    micro_batches: int,
    costs: ActionCosts,
    *,
    memory: float | None = None,
    chunks: int = 1,
    virtual: int = 1,
    layout: str = "loop",
    split: bool = True,
) -> float:
    """Return a time that no schedule of these sizes can beat, if no stage may hold more than `memory` of the batch.

    With `split`, backward passes may be split: all or none. Even the best schedule may take longer than the bound.
    """
    sizes = (stages, micro_batches, chunks, virtual, layout)
    kinds = (False, True) if split else (False,)
    return min(bound_of(Problem(one_at_a_time(*sizes, split=kind), costs, memory)) for kind in kinds)


def bound_of(problem: Problem) -> float:
    """Return the bound for all orders of this problem's steps."""
    before, after = problem.longest_before(), problem.longest_after()
    chain = max(start + seconds + tail for start, seconds, tail in zip(before, problem.seconds, after, strict=True))
    stages = range(len(problem.example.stages))
    loads = [_fullest_load(problem, stage, before, after) for stage in stages]
    return max(chain, *loads, *(_time_to_hold(problem, stage, before, after) for stage in stages))


def _fullest_load(problem: Problem, stage: int, before: list[float], after: list[float]) -> float:
    """Return the most time that any set of the stage's steps implies: its earliest start, its work, and the least time
    after its end.

    For each earliest start and each remaining time, it is enough to try the set of all steps with at least this
    earliest start and at least this time remaining.
    """
    work: dict[tuple[float, float], float] = defaultdict(float)
    for step, owner in enumerate(problem.stage):
        if owner == stage:
            work[before[step], after[step]] += problem.seconds[step]
    most = 0.0
    for start in {start for start, _ in work}:
        later = {tail: 0.0 for earliest, tail in work if earliest >= start}
        for tail in later:
            later[tail] = sum(seconds for (begin, ending), seconds in work.items() if begin >= start and ending >= tail)
        most = max(most, *(start + seconds + tail for tail, seconds in later.items()))
    return most


def _time_to_hold(problem: Problem, stage: int, before: list[float], after: list[float]) -> float:
    """Return the bound from memory: a piece is held at least for the time of its fastest way forward and back.

    These times add up over all pieces; a stage that may hold three pieces at once needs a third of the sum.
    """
    steps = [step for step, s in enumerate(problem.stage) if s == stage and not problem.steps[step][1].micro_batch]
    begins = {problem.steps[step][1].piece: step for step in steps if problem.grows[step] > 0}
    ends = {problem.steps[step][1].piece: step for step in steps if problem.grows[step] < 0}
    micro_batches = problem.example.micro_batches  # all of them are equal, so we only look at the first
    total_held = micro_batches * sum(_longest_way(problem, begins[piece], ends[piece]) for piece in begins)
    at_once = max(1, int(min(problem.room, micro_batches * len(begins))))
    earliest = min(before[step] for step in begins.values())
    return earliest + total_held / at_once + min(after[step] for step in ends.values())


def _longest_way(problem: Problem, begin: int, end: int) -> float:
    """Return the least time from the start of one step to the end of a later one that depends on it."""
    reached = {begin: problem.seconds[begin]}
    for step in problem.first_micro_batch:
        arrivals = [reached[source] + problem.link(step, source) for source in problem.needs[step] if source in reached]
        if arrivals:
            reached[step] = max(arrivals) + problem.seconds[step]
    return reached[end]
