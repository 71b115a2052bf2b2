"""Schedules with a split backward pass (Qi et al., arXiv 2401.10241): weight gradients fill what would be a bubble.

Only the gradients of a stage's *inputs* are waited for, by the stage before. Those of its weights can be made any time
before the update.
"""

from __future__ import annotations

from itertools import chain, repeat

from course_lib.planning.schedules.schedule import Schedule
from course_lib.planning.schedules.turns import check_sizes, numbered

F0, B0, W0 = ("F", 0), ("B", 0), ("W", 0)
F1, B1, W1 = ("F", 1), ("B", 1), ("W", 1)


def zero_bubble_h1(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """1F1B with a split backward pass: a third of its bubble if F, B and W take equally long, and no more memory.

    Stage s lets the weight gradients of s micro-batches wait. What they keep and what is held for backward passes is
    together at most `stages` micro-batches on every stage: what stage 0 holds in 1F1B.
    """
    check_sizes(stages, micro_batches, chunks)
    rows = []
    for stage in range(stages):
        begin = [F0] * (stages - 1 - stage) + [F0, B0] * stage
        rows.append(numbered(chain(begin, *repeat([F0, B0, W0], micro_batches)), micro_batches, chunks))
    return Schedule("zb-h1", tuple(rows), micro_batches, chunks)


def zero_bubble_v(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Two parts per stage in the form of a V, and a split backward pass: no bubble but for one fill of the pipeline.

    The last part lies on stage 0, where the loss begins its way back at once. If F, B and W take equally long and there
    are at least 2*stages-1 micro-batches, a stage waits for stages-1 actions in all. It holds at most `stages`
    micro-batches, like stage 0 in 1F1B, on every stage.
    """
    check_sizes(stages, micro_batches, chunks)
    most = max(2 * stages - 1, micro_batches)  # the pattern needs so many; those that are not there are left out
    rows = []
    for stage in range(stages):
        left = stages - stage
        fill = [F0] * (2 * left - 1) + [F1, F0] * stage + [F1, B1, W1] * left
        steady = [F0, B0, W0, F1, B1, W1] * (most - stages)
        drain = [B0, B1] * stage + [B0, W0] * left + [W1] * stage + [W0] * stage
        rows.append(numbered(fill + steady + drain, micro_batches, chunks))
    return Schedule("zb-v", tuple(rows), micro_batches, chunks, virtual=2, layout="v")
