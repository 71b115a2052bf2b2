"""How good a schedule is: its time and what it holds, beside those that have a name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from course_lib.pictures.widgets.svg import table
from course_lib.planning.costs import ActionCosts
from course_lib.planning.schedules import SCHEDULES, Schedule, make_schedule
from course_lib.planning.simulation import Simulation, simulate


def known(schedule: Schedule, costs: ActionCosts) -> Mapping[str, Simulation]:
    """The schedules that have a name, for the same work. With one chunk, a wavefront is 1F1B.

    `costs` are those of a whole stage: a virtual stage has its share of them.
    """
    return _known(len(schedule.stages), schedule.micro_batches, schedule.chunks, costs)


@lru_cache(maxsize=16)  # they stay the same while actions are moved
def _known(stages: int, micro_batches: int, chunks: int, costs: ActionCosts) -> Mapping[str, Simulation]:
    names = [name for name in SCHEDULES if chunks > 1 or name != "wavefront"]
    made = {name: make_schedule(name, stages, micro_batches, chunks) for name in names}
    return {name: simulate(schedule, costs.per_part(schedule)) for name, schedule in made.items()}


def score_table(
    yours: Simulation | None,
    others: Mapping[str, Simulation],
    found: Simulation | None = None,
    bound: float | None = None,
) -> str:
    """One row for yours, one for each that has a name, for what a search has found, and for what nothing can beat."""
    rows = [_row("yours", yours)] if yours else [["yours", "never ends", "", "", ""]]
    rows += [_row(name, simulation) for name, simulation in others.items()]
    rows += [_row("found by the search", found)] if found else []
    rows += [] if bound is None else [["bound, holding no more than yours", f"{bound:.4g}", "", "", ""]]
    head = ["schedule", "makespan", "bubble", "of the batch, held by the fullest stage", "by all stages"]
    return table(head, rows, "Your schedule beside those that have a name")


def _row(name: str, simulation: Simulation) -> list[str]:
    held = [share.total for share in simulation.peak_share]
    return [
        name,
        f"{simulation.makespan:.4g}",
        f"{simulation.bubble:.1%}",
        f"{100 * max(held):.3g}%",
        f"{100 * sum(held) / len(held):.3g}%",
    ]


def verdict(yours: Simulation, others: Mapping[str, Simulation]) -> str:
    """What it takes and holds, and which of those with a name it beats, equals, or loses to."""
    facts = (
        f"It runs: makespan {yours.makespan:.4g}, bubble {yours.bubble:.1%}, "
        f"held at most, of the batch: {', '.join(share.percent for share in yours.peak_share)}."
    )
    order = {name: _order(simulation, yours) for name, simulation in others.items()}
    better, equal = ([name for name, place in order.items() if place == wanted] for wanted in (-1, 0))
    if better:
        return f"{facts} Faster, or as fast with less memory: {', '.join(better)}."
    as_good = f"as good: {', '.join(equal)}" if equal else "none is as good"
    return f"{facts} Nothing with a name does better; {as_good}."


def _order(other: Simulation, yours: Simulation) -> int:
    """-1 if the other one is better: first by time, then by what is held; times within rounding are equal."""
    time, own_time = other.makespan, yours.makespan
    if abs(time - own_time) > 1e-9 * max(time, 1):
        return -1 if time < own_time else 1
    held, own_held = (sum(share.total for share in one.peak_share) for one in (other, yours))
    return (held > own_held + 1e-9) - (held < own_held - 1e-9)
