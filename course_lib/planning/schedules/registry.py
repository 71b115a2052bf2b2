"""Schedules by name, and what can be made of any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from course_lib.planning.schedules.actions import Action
from course_lib.planning.schedules.one_part import gpipe, naive, one_f_one_b, wavefront
from course_lib.planning.schedules.schedule import Schedule
from course_lib.planning.schedules.virtual_stages import interleaved_one_f_one_b, looped_bfs
from course_lib.planning.schedules.zero_bubble import zero_bubble_h1, zero_bubble_v

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "wavefront": wavefront,
    "interleaved": interleaved_one_f_one_b,
    "looped-bfs": looped_bfs,
    "zb-h1": zero_bubble_h1,
    "zb-v": zero_bubble_v,
}
ANY_VIRTUAL = ("interleaved", "looped-bfs")  # how many virtual stages may be chosen


def make_schedule(
    name: str, stages: int, micro_batches: int, chunks: int = 1, virtual: int | None = None, recompute: bool = False
) -> Schedule:
    """The schedule of that name and size. Without `virtual`, it has the usual number of virtual stages: 1 or 2."""
    if name not in SCHEDULES:
        raise ValueError(f"schedule={name!r}: choose {', '.join(SCHEDULES)}, or give a Schedule")
    usual = 2 if name in (*ANY_VIRTUAL, "zb-v") else 1
    if name in ANY_VIRTUAL:
        made = SCHEDULES[name](stages, micro_batches, chunks, usual if virtual is None else virtual)
    elif virtual in (None, usual):
        made = SCHEDULES[name](stages, micro_batches, chunks)
    else:
        raise ValueError(
            f"virtual={virtual}: {name} has {usual} virtual stage{'s' * (usual > 1)} per stage; with "
            f"{' or '.join(ANY_VIRTUAL)} you may choose how many"
        )
    return with_recomputation(made) if recompute else made


def with_recomputation(schedule: Schedule) -> Schedule:
    """The same schedule if no forward pass keeps its activations: each is made again just before its backward pass.

    A stage then holds the activations of one action at a time, and works one more forward pass for each.
    """
    rows = tuple(tuple(_recomputing(row)) for row in schedule.stages)
    return replace(schedule, name=f"{schedule.name} + recomputation", stages=rows)


def _recomputing(row: tuple[Action, ...]) -> Iterator[Action]:
    again = {action.piece for action in row if action.kind == "R"}
    for action in row:
        if action.kind == "B" and action.piece not in again:
            yield replace(action, kind="R")
        yield action
