"""What no order can beat: the longest chain of needs, the fullest stage, and what can be held at once."""

from __future__ import annotations

from course_lib.planning.costs import ActionCosts
from course_lib.planning.search.problem import Problem
from course_lib.planning.search.starts import one_at_a_time


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
    """A time that no schedule of these sizes can beat, if no stage holds more than the share `memory` of the batch.

    With `split`, backward passes may be split, each or none. The best schedule may still take longer than the bound.
    """
    sizes = (stages, micro_batches, chunks, virtual, layout)
    kinds = (False, True) if split else (False,)
    return min(bound_of(Problem(one_at_a_time(*sizes, split=kind), costs, memory)) for kind in kinds)


def bound_of(problem: Problem) -> float:
    """The bound for all orders of the steps of this problem."""
    before, after = problem.longest_before(), problem.longest_after()
    chain = max(start + seconds + rest for start, seconds, rest in zip(before, problem.seconds, after, strict=True))
    stages = range(len(problem.example.stages))
    loads = [_fullest_load(problem, stage, before, after) for stage in stages]
    return max(chain, *loads, *(_time_to_hold(problem, stage, before, after) for stage in stages))


def _fullest_load(problem: Problem, stage: int, before: list[float], after: list[float]) -> float:
    """The most that any set of the stage's steps takes: its earliest start, its work, and what must follow its end.

    It is enough to try, for each earliest start and each rest, the set of all steps that start no earlier and have no
    shorter rest.
    """
    own = [(before[step], after[step], problem.seconds[step]) for step in range(len(before))]
    own = [one for step, one in enumerate(own) if problem.stage[step] == stage]
    most = 0.0
    for start in {one[0] for one in own}:
        later = [one for one in own if one[0] >= start]
        for rest in {one[1] for one in later}:
            work = sum(seconds for _, following, seconds in later if following >= rest)
            most = max(most, start + work + rest)
    return most


def _time_to_hold(problem: Problem, stage: int, before: list[float], after: list[float]) -> float:
    """A piece is held from the start of its forward pass, at the least, for as long as its way there and back takes.

    All pieces together are held for a certain time; a stage that may hold three at once needs a third of it.
    """
    own = [step for step, of in enumerate(problem.stage) if of == stage]
    begins = {problem.steps[step][1].piece: step for step in own if problem.grows[step] > 0}
    ends = {problem.steps[step][1].piece: step for step in own if problem.grows[step] < 0}
    together = sum(_longest_way(problem, begins[piece], ends[piece]) for piece in begins)
    first = min(before[step] for step in begins.values())
    return first + together / max(1, int(min(problem.room, len(begins)))) + min(after[step] for step in ends.values())


def _longest_way(problem: Problem, first: int, last: int) -> float:
    """How long it takes at least from the start of one step to the end of another that needs it."""
    reached = {first: problem.seconds[first]}
    for step in problem.order:
        ways = [reached[other] + problem.link(step, other) for other in problem.needs[step] if other in reached]
        if ways:
            reached[step] = max(ways) + problem.seconds[step]
    return reached[last]
