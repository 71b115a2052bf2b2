"""How good a schedule is: its time and what it holds, beside those that have a name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from course_lib.pictures.widgets.svg import table
from course_lib.planning.schedules import SCHEDULES, Schedule
from course_lib.planning.simulation import ActionCosts, Simulation, simulate


def known(schedule: Schedule, costs: ActionCosts) -> Mapping[str, Simulation]:
    """The schedules that have a name, for the same work. With one chunk, a wavefront is 1F1B."""
    return _known(len(schedule.stages), schedule.micro_batches, schedule.chunks, costs)


@lru_cache(maxsize=16)  # they stay the same while actions are moved
def _known(stages: int, micro_batches: int, chunks: int, costs: ActionCosts) -> Mapping[str, Simulation]:
    names = [name for name in SCHEDULES if chunks > 1 or name != "wavefront"]
    return {name: simulate(SCHEDULES[name](stages, micro_batches, chunks), costs) for name in names}


def score_table(yours: Simulation | None, others: Mapping[str, Simulation]) -> str:
    """One row for yours, and one for each that has a name."""
    rows = [_row("yours", yours)] if yours else [["yours", "never ends", "", "", ""]]
    rows += [_row(name, simulation) for name, simulation in others.items()]
    head = ["schedule", "makespan", "bubble", "micro-batches held by the fullest stage", "by all"]
    return table(head, rows, "Your schedule beside those that have a name")


def _row(name: str, simulation: Simulation) -> list[str]:
    held = simulation.peak_micro_batches
    return [
        name,
        f"{simulation.makespan:.4g}",
        f"{simulation.bubble:.1%}",
        f"{max(held):.3g}",
        f"{sum(held):.3g}",
    ]


def verdict(yours: Simulation, others: Mapping[str, Simulation]) -> str:
    """What it takes and holds, and which of those with a name it beats, equals, or loses to."""
    held = sum(yours.peak_micro_batches)
    facts = (
        f"It runs: makespan {yours.makespan:.4g}, bubble {yours.bubble:.1%}, "
        f"micro-batches held at most: {', '.join(f'{count:.3g}' for count in yours.peak_micro_batches)}."
    )
    order = {n: _order(s.makespan, sum(s.peak_micro_batches), yours.makespan, held) for n, s in others.items()}
    better, equal = ([name for name, place in order.items() if place == wanted] for wanted in (-1, 0))
    if better:
        return f"{facts} Faster, or as fast with less memory: {', '.join(better)}."
    as_good = f"as good: {', '.join(equal)}" if equal else "none is as good"
    return f"{facts} Nothing with a name does better; {as_good}."


def _order(time: float, held: float, own_time: float, own_held: float) -> int:
    """-1 if the other one is better: first by time, then by what is held; times within rounding are equal."""
    if abs(time - own_time) > 1e-9 * max(time, 1):
        return -1 if time < own_time else 1
    return (held > own_held + 1e-9) - (held < own_held - 1e-9)
