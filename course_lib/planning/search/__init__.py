"""Search for a good schedule: start from all named and greedy ones, then move single actions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from random import Random
from time import monotonic

from tqdm import tqdm

from course_lib.planning.schedules import Schedule
from course_lib.planning.search.bound import bound_of, lower_bound
from course_lib.planning.search.orders import greedy_orders, improved, named_schedules, one_at_a_time
from course_lib.planning.search.problem import Problem, Rows
from course_lib.planning.simulation import ActionCosts

__all__ = ["find_schedule", "lower_bound"]

CHANCES = 4  # how many of the best starting points are improved


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

    It is never worse than a named schedule that fits, and often better; only the bound can tell whether it is optimal
    (`lower_bound`). With `split`, backward passes may be split: all of them, or none. The same seed and number of tries
    find the same schedule; `seconds` ends the search earlier.
    """
    _check_memory(memory, micro_batches)
    found: list[tuple[float, Schedule]] = []
    end = float("inf") if seconds is None else monotonic() + seconds
    kinds = (False, True) if split else (False,)
    with tqdm(total=tries, desc="searching", delay=3, leave=False) as bar:

        def go_on(tried: int) -> bool:
            if tried:
                bar.update(tried)
            return monotonic() < end

        for is_split in kinds:
            example = one_at_a_time(stages, micro_batches, chunks, virtual, layout, split=is_split)
            problem = Problem(example, costs, memory)
            found.append(_search(problem, is_split, tries // len(kinds), seed, go_on))
    return min(found, key=lambda one: one[0])[1]


def _search(
    problem: Problem, split: bool, tries: int, seed: int, go_on: Callable[[int], bool]
) -> tuple[float, Schedule]:
    """Return the time of the best schedule found with these steps, and the schedule."""
    starts = _starts(problem, split, go_on)
    enough, chance = bound_of(problem), Random(seed)
    found = [improved(problem, rows, tries // len(starts), chance, enough, go_on) for _, rows in starts]
    best, rows = min(found, key=lambda one: one[0])
    return best, problem.schedule_of(rows, "found")


def _starts(problem: Problem, split: bool, go_on: Callable[[int], bool]) -> list[tuple[float, Rows]]:
    """Return the fastest starting orders that fit, with their times. One micro-batch at a time always fits."""
    known = (problem.rows_of(schedule) for schedule in (problem.example, *named_schedules(problem.example, split)))
    timed: list[tuple[float, Rows]] = []
    for rows in chain(known, greedy_orders(problem)):
        ends = problem.ends(rows)
        if ends is not None and all(map(problem.fits, rows)):
            timed.append((max(ends), rows))
        if not go_on(0):
            break
    return sorted(timed, key=lambda one: one[0])[:CHANCES]


def _check_memory(memory: float | None, micro_batches: int) -> None:
    if memory is not None and memory * micro_batches < 1 - 1e-9:
        raise ValueError(
            f"memory={memory:.3g} of the batch is less than one of {micro_batches} micro-batches: "
            f"give at least {1 / micro_batches:.3g}, or cut the batch into more"
        )
