"""What a search makes of the bench's work, and what nothing can beat: both with as much memory as the learner uses."""

from __future__ import annotations

from functools import lru_cache

from course_lib.planning.costs import ActionCosts
from course_lib.planning.schedules import Schedule
from course_lib.planning.search import find_schedule, lower_bound
from course_lib.planning.simulation import Simulation, simulate

TRIES, SECONDS = 6000, 4.0  # a learner waits for it; most benches are searched in a second


def search_like(schedule: Schedule, costs: ActionCosts) -> Simulation:
    """A good schedule of the same actions, in which no stage holds more than the fullest of this one."""
    sizes = len(schedule.stages), schedule.micro_batches
    found = find_schedule(*sizes, costs, **_question(schedule), tries=TRIES, seconds=SECONDS)
    return simulate(found, costs)


def bound_like(schedule: Schedule, costs: ActionCosts) -> float:
    """What no schedule of the same actions can beat that holds no more."""
    question = tuple(sorted(_question(schedule).items()))
    return _bound(len(schedule.stages), schedule.micro_batches, costs, question)


@lru_cache(maxsize=64)  # it changes only with what is held
def _bound(stages: int, micro_batches: int, costs: ActionCosts, question: tuple) -> float:
    return lower_bound(stages, micro_batches, costs, **dict(question))


def _question(schedule: Schedule) -> dict:
    return {
        "memory": max(share.total for share in schedule.peak_share),
        "chunks": schedule.chunks,
        "virtual": schedule.virtual,
        "layout": schedule.layout,
        "split": bool(schedule.split),
    }
