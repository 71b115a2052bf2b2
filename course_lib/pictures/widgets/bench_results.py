"""What the bench reports about a schedule: its score, why it gets stuck, a search for a better one, and a real run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from course_lib.pictures.svg import table
from course_lib.planning.actions import IllegalSchedule
from course_lib.planning.schedule import Schedule, Waiting, check
from course_lib.planning.schedules import SCHEDULES, make_schedule
from course_lib.planning.search import find_schedule, lower_bound
from course_lib.planning.simulation import ActionCosts, Simulation, simulate
from course_lib.words import counted


@lru_cache(maxsize=16)  # moving an action does not change the arguments
def named_schedules(
    stages: int, micro_batches: int, chunks: int, backward: float, link: float
) -> Mapping[str, Simulation]:
    """Return the named schedules of these sizes, whose forward actions take 1. With one chunk, a wavefront is 1F1B."""
    costs = ActionCosts(1.0, backward, link)  # of a whole stage: a virtual stage has its share of them
    names = [name for name in SCHEDULES if chunks > 1 or name != "wavefront"]
    schedules = {name: make_schedule(name, stages, micro_batches, chunks) for name in names}
    return {name: simulate(schedule, costs.per_part(schedule)) for name, schedule in schedules.items()}


def score_table(
    yours: Simulation | None, others: Mapping[str, Simulation], found: Simulation | None, bound: float | None
) -> str:
    """Return a table with your schedule, the named ones, the one that a search found, and the lower bound."""
    rows = [] if yours else [["yours", "never ends", "", "", ""]]
    scored = {"yours": yours, **others, "found by the search": found}
    for name, simulation in scored.items():
        if simulation:
            held = [100 * share.total for share in simulation.peak_share]
            shares = f"{max(held):.3g}%", f"{sum(held) / len(held):.3g}%"
            rows.append([name, f"{simulation.makespan:.4g}", f"{simulation.bubble:.1%}", *shares])
    rows += [] if bound is None else [["bound, with any memory", f"{bound:.4g}", "", "", ""]]
    head = ["schedule", "makespan", "bubble", "fullest stage holds", "all stages hold"]
    return table(head, rows, "Your schedule next to the named ones; what is held, as a share of the batch")


def comparison(yours: Simulation, others: Mapping[str, Simulation]) -> str:
    """Return what your schedule takes and holds, and which named schedules it beats, equals, or loses to."""
    facts = (
        f"It runs: makespan {yours.makespan:.4g}, bubble {yours.bubble:.1%}, "
        f"held at most, of the batch: {', '.join(share.percent for share in yours.peak_share)}."
    )
    better, equal = [], []
    time, held = yours.makespan, sum(share.total for share in yours.peak_share)
    for name, other in others.items():
        slower = other.makespan - time
        if abs(slower) <= 1e-9 * max(other.makespan, 1):  # as fast, within rounding: compare the memory
            slower = sum(share.total for share in other.peak_share) - held
        if abs(slower) <= 1e-9:
            equal.append(name)
        elif slower < 0:
            better.append(name)
    if better:
        return f"{facts} Named schedules that are faster, or as fast with less memory: {', '.join(better)}."
    as_good = f"as good: {', '.join(equal)}" if equal else "none is as good"
    return f"{facts} No named schedule is better; {as_good}."


def goal(yours: Simulation | None, others: Mapping[str, Simulation], moves: int) -> str:
    """Return the goal, GPipe's time in 1F1B's memory, and the number of moves; empty if 1F1B saves no memory."""
    target, least = others["gpipe"].makespan, _fullest(others["1f1b"])
    if _fullest(others["gpipe"]) <= least + 1e-9:
        return ""
    reached = yours and yours.makespan <= target * (1 + 1e-9) and _fullest(yours) <= least + 1e-9
    if reached:
        return f"✓ Goal reached in {counted(moves, 'move')}: GPipe's time in 1F1B's memory." if moves else ""
    held = f"no stage holds over {100 * least:.3g}%, as in 1F1B"
    return f"Goal: makespan {target:.4g}, as in GPipe; {held}. So far: {counted(moves, 'move')}."


def _fullest(simulation: Simulation) -> float:
    return max(share.total for share in simulation.peak_share)


TRIES = 6000  # not more, because a learner is waiting; most searches take a second


def better_schedule(schedule: Schedule, costs: ActionCosts) -> Simulation | None:
    """Return a faster schedule of the same actions, in which no stage holds more than this schedule's fullest stage."""
    memory = max(share.total for share in schedule.peak_share)
    found = simulate(find_schedule(**_sizes(schedule), costs=costs, memory=memory, tries=TRIES), costs)
    return found if found.makespan <= simulate(schedule, costs).makespan * (1 - 1e-9) else None


def bound_of(schedule: Schedule, costs: ActionCosts) -> float:
    """Return a makespan that no schedule of the same actions can beat, whatever it holds."""
    return lower_bound(**_sizes(schedule), costs=costs)


def _sizes(schedule: Schedule) -> dict[str, Any]:
    sizes = {name: getattr(schedule, name) for name in ("micro_batches", "chunks", "virtual", "layout")}
    return {"stages": len(schedule.stages), "split": bool(schedule.split), **sizes}


def why_stuck(schedule: Schedule, waiting: Sequence[Waiting]) -> str:
    """Return what is wrong with an illegal schedule, and which stage waits for which other one."""
    reason = ""
    try:
        check(schedule)
    except IllegalSchedule as error:
        reason = str(error)
    sentences = []
    for wait in waiting:
        stage, action = wait.needs
        whose = "its own" if stage == wait.stage else f"stage {stage}'s"
        sentences.append(f"stage {wait.stage} with {schedule.label(wait.action)} for {whose} {schedule.label(action)}")
    return f"Stuck: {reason}. Who waits: {'; '.join(sentences)}."


PACE = 0.02  # seconds per forward action


def one_step(schedule: Schedule, costs: ActionCosts) -> None:
    """Run two training steps on each rank; only the second is recorded, to leave out the setup."""
    from functools import partial

    import torch
    import torch.distributed as dist

    from course_lib import trace
    from course_lib.data import AddingProblem
    from course_lib.lstm import lstm_model, squared_error
    from course_lib.strategies import Pipeline

    parts = schedule.stage_map.positions
    model = lstm_model(features=2, hidden=8, layers=max(1, parts - 2), outputs=1)
    forward, backward = costs.forward, costs.backward
    # The bench has one number for all stages.
    assert isinstance(forward, (int, float))
    assert isinstance(backward, (int, float))
    pace = ActionCosts(PACE * forward, PACE * backward)
    strategy = Pipeline(model, partial(torch.optim.SGD, lr=0.01), squared_error, schedule=schedule, pace=pace)
    steps = max(2, schedule.chunks)
    batch = AddingProblem(schedule.micro_batches, lengths=(steps, steps)).batch(range(schedule.micro_batches))
    for _ in range(2):
        dist.barrier()
        trace.recorder.spans.clear()
        strategy.step(batch)
