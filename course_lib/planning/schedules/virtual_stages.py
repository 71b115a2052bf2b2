"""Schedules of stages that hold several parts of the model each: interleaved 1F1B and looped breadth-first."""

from __future__ import annotations

from itertools import chain, pairwise

from course_lib.planning.schedules.one_part import one_f_one_b
from course_lib.planning.schedules.schedule import Schedule
from course_lib.planning.schedules.turns import check_sizes, taking_turns, unit


def interleaved_one_f_one_b(stages: int, micro_batches: int, chunks: int = 1, virtual: int = 2) -> Schedule:
    """1F1B over `virtual` parts per stage (Narayanan et al., arXiv 2104.04473): a bubble `virtual` times smaller.

    Micro-batches go in rounds of about as many as there are stages: a round passes through a stage's first part, then
    its second, and so on. Forward and backward passes of a part are `virtual` times shorter, and so is the time to fill
    and drain the pipeline; there are `virtual` times as many messages, and more is held: stage s at most
    (virtual-1) * round + 2*(stages-s) - 1 pieces, where a piece is one micro-batch in one part.
    Megatron needs `stages` to divide `micro_batches`; here rounds may differ by one. With one part it *is* 1F1B.
    """
    check_sizes(stages, micro_batches, chunks, virtual)
    if virtual == 1:
        rows = one_f_one_b(stages, micro_batches, chunks).stages
        return Schedule("interleaved", rows, micro_batches, chunks)
    rounds = rounds_of(stages, micro_batches)
    forwards = [unit("F", m, chunks, v) for members in rounds for v in range(virtual) for m in members]
    backwards = [unit("B", m, chunks, v) for members in rounds for v in reversed(range(virtual)) for m in members]
    last_stage = (virtual - 1) * len(rounds[0])  # forwards before the first that a backward can follow
    rows = tuple(
        taking_turns(forwards, backwards, ahead=last_stage + 2 * (stages - 1 - stage) + 1) for stage in range(stages)
    )
    return Schedule("interleaved", rows, micro_batches, chunks, virtual)


def rounds_of(stages: int, micro_batches: int) -> list[range]:
    """The micro-batches in rounds of at least `stages`, as equal as can be, the larger ones first."""
    count = max(1, micro_batches // stages)
    size, more = divmod(micro_batches, count)
    ends = [number * size + min(number, more) for number in range(count + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def looped_bfs(stages: int, micro_batches: int, chunks: int = 1, virtual: int = 2) -> Schedule:
    """GPipe over `virtual` parts per stage (Lamy-Poirier, arXiv 2211.05953): breadth first, and all is held.

    All micro-batches pass through a stage's first part, then all through its second, and so on; backward likewise, the
    last micro-batch first. The bubble is as small as the interleaved one's; a part's work comes in one go, so that its
    weights are needed, and its gradients ready, once: good for sharded weights.
    """
    check_sizes(stages, micro_batches, chunks, virtual)
    forwards = [unit("F", m, chunks, v) for v in range(virtual) for m in range(micro_batches)]
    backwards = [unit("B", m, chunks, v) for v in reversed(range(virtual)) for m in reversed(range(micro_batches))]
    row = tuple(chain(*forwards, *backwards))
    return Schedule("looped-bfs", (row,) * stages, micro_batches, chunks, virtual)
