"""A lower bound on the time of any order: from the critical path, the busiest stage, and the memory limit."""

from __future__ import annotations

from collections import defaultdict

from course_lib.planning.search.orders import one_at_a_time
from course_lib.planning.search.problem import Problem
from course_lib.planning.simulation import ActionCosts


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
    chain = max(start + seconds + rest for start, seconds, rest in zip(before, problem.seconds, after, strict=True))
    stages = range(len(problem.example.stages))
    loads = [_fullest_load(problem, stage, before, after) for stage in stages]
    return max(chain, *loads, *(_time_to_hold(problem, stage, before, after) for stage in stages))


def _fullest_load(problem: Problem, stage: int, before: list[float], after: list[float]) -> float:
    """Return the most time that any set of the stage's steps implies: its earliest start, its work, and the least time
    after its end.

    For each earliest start and each remaining time, it is enough to try the set of all steps that start no earlier and
    have no less time remaining.
    """
    work: dict[tuple[float, float], float] = defaultdict(float)
    for step, of in enumerate(problem.stage):
        if of == stage:
            work[before[step], after[step]] += problem.seconds[step]
    most = 0.0
    for start in {start for start, _ in work}:
        later = {rest: 0.0 for own_start, rest in work if own_start >= start}
        for rest in later:
            later[rest] = sum(seconds for (one, other), seconds in work.items() if one >= start and other >= rest)
        most = max(most, *(start + seconds + rest for rest, seconds in later.items()))
    return most


def _time_to_hold(problem: Problem, stage: int, before: list[float], after: list[float]) -> float:
    """Return the bound from memory: a piece is held at least as long as its fastest way forward and back takes.

    These times add up over all pieces; a stage that may hold three pieces at once needs a third of the sum.
    """
    own = [step for step, of in enumerate(problem.stage) if of == stage and not problem.steps[step][1].micro_batch]
    begins = {problem.steps[step][1].piece: step for step in own if problem.grows[step] > 0}
    ends = {problem.steps[step][1].piece: step for step in own if problem.grows[step] < 0}
    micro_batches = problem.example.micro_batches  # all equal, so we only look at the first
    together = micro_batches * sum(_longest_way(problem, begins[piece], ends[piece]) for piece in begins)
    at_once = max(1, int(min(problem.room, micro_batches * len(begins))))
    first = min(before[step] for step in begins.values())
    return first + together / at_once + min(after[step] for step in ends.values())


def _longest_way(problem: Problem, first: int, last: int) -> float:
    """Return the least time from the start of one step to the end of a later one that depends on it."""
    reached = {first: problem.seconds[first]}
    for step in problem.first_micro_batch:
        ways = [reached[other] + problem.link(step, other) for other in problem.needs[step] if other in reached]
        if ways:
            reached[step] = max(ways) + problem.seconds[step]
    return reached[last]
