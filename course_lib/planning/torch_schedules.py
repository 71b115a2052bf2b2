"""Convert the schedules of `torch.distributed.pipelining` to ours, to draw, simulate and compare them.

PyTorch computes the order of all ranks' actions when it creates a schedule. The attributes that we read here are
private, and may change from version to version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from course_lib.planning.actions import LAYOUTS, Action, IllegalSchedule, Layout
from course_lib.planning.schedule import Schedule, check

KINDS = {"F": "F", "B": "B", "I": "B", "W": "W"}  # in PyTorch, B is a whole backward pass, I only the input gradients
OVERLAPPED = "OVERLAP_F_B"  # a forward and a backward pass side by side
NO_WORK = {"SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"}  # implied by the rest


def from_torch(torch_schedule: type | str, stages: int, micro_batches: int, virtual: int = 2) -> Schedule:
    """Return PyTorch's schedule with this class or name ("Interleaved1F1B", "ZBVZeroBubble", ...) as a `Schedule`.

    This needs no ranks. `virtual` is the number of stages, in PyTorch's sense, on each rank. A pair of passes that
    PyTorch overlaps becomes a forward, then a backward pass.
    """
    import torch
    from torch.distributed.pipelining import schedules as library

    kind = library.get_schedule_class(torch_schedule) if isinstance(torch_schedule, str) else torch_schedule
    if not issubclass(kind, library.PipelineScheduleMulti):
        raise ValueError(
            f"PyTorch decides what {kind.__name__} does next while it runs, and has no order to read: "
            "take gpipe or one_f_one_b of course_lib.planning"
        )
    name = f"torch {kind.__name__.removeprefix('Schedule')}"
    try:
        order, layout = _order_of(kind, stages, micro_batches, virtual)
        rows = tuple(tuple(_actions(order[rank], rank, layout)) for rank in range(stages))
    except (AttributeError, TypeError, KeyError) as error:
        raise NotImplementedError(
            f"this PyTorch ({torch.__version__}) keeps the order of {kind.__name__} in a place unknown to the course "
            f"({type(error).__name__}: {error}): build the schedule with course_lib.planning.make_schedule"
        ) from error
    schedule = Schedule(name, rows, micro_batches, 1, virtual, layout.style)
    try:
        check(schedule)
    except IllegalSchedule as reason:
        raise IllegalSchedule(f"{name}, {stages} stages, {micro_batches} micro-batches: {reason}") from None
    return schedule


def _order_of(kind: Any, stages: int, micro_batches: int, virtual: int) -> tuple[Mapping[int, Iterable[Any]], Layout]:
    """Return each rank's actions in PyTorch's schedule, and the layout of its parts."""
    made = kind([_stand_in(stages, virtual, number) for number in range(virtual)], micro_batches)
    owner = made.stage_index_to_group_rank
    for style in LAYOUTS:
        layout = Layout(stages, virtual, style)
        if all(layout.stage_at(position)[0] == owner[position] for position in range(layout.positions)):
            return made.pipeline_order, layout
    raise KeyError(f"no layout puts the parts on ranks {owner}")


def _stand_in(stages: int, virtual: int, number: int) -> Any:
    """Return a stand-in for a stage of rank 0, with what PyTorch reads to create a schedule: sizes, but no model."""
    return SimpleNamespace(
        group_size=stages,
        group_rank=0,
        num_stages=stages * virtual,
        stage_index=number * stages,
        is_first=number == 0,
        is_last=number == virtual - 1,
        submod=None,
    )


def _actions(order: Iterable[Any], rank: int, layout: Layout) -> Iterable[Action]:
    """Yield a rank's actions. PyTorch has None where a rank waits; we skip it, since waits follow from dependencies."""
    for one in order:
        if one is None or one.computation_type.value in NO_WORK:
            continue
        if one.computation_type.value == OVERLAPPED:
            yield from _actions(one.sub_actions, rank, layout)
            continue
        stage, virtual = layout.stage_at(one.stage_index)
        if stage != rank:
            raise KeyError(f"rank {rank} does {one}, which belongs to rank {stage}")
        yield Action(KINDS[one.computation_type.value], one.microbatch_index, 0, virtual)
