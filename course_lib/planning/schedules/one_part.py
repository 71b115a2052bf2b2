"""Schedules of stages that hold one part of the model each: naive, GPipe, 1F1B and the wavefront."""

from __future__ import annotations

from course_lib.planning.schedules.schedule import Schedule
from course_lib.planning.schedules.turns import check_sizes, taking_turns, whole_micro_batches


def naive(stages: int, micro_batches: int = 1, chunks: int = 1) -> Schedule:
    """Each micro-batch goes all the way forward and back before the next one starts.

    With one chunk, one stage works at a time, and the bubble is (stages-1)/stages for any number of micro-batches.
    With several chunks a stage passes each one on as it is done, so that the stages overlap within a micro-batch.
    """
    check_sizes(stages, micro_batches, chunks)
    row = taking_turns(*whole_micro_batches(micro_batches, chunks), ahead=1)
    return Schedule("naive", (row,) * stages, micro_batches, chunks)


def gpipe(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """All forwards, then all backwards: every stage holds every micro-batch.

    The backwards begin with the first micro-batch, as in `torch.distributed.pipelining`, so that the two can be
    compared action by action. The paper draws the last one first: time and memory are the same.
    """
    check_sizes(stages, micro_batches, chunks)
    row = taking_turns(*whole_micro_batches(micro_batches, chunks), ahead=micro_batches)
    return Schedule("gpipe", (row,) * stages, micro_batches, chunks)


def one_f_one_b(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """One forward, one backward in turn, as soon as a stage can: stage s holds at most stages-s micro-batches.

    What takes turns is a whole micro-batch: its chunks in order forward, in reverse order backward.
    """
    check_sizes(stages, micro_batches, chunks)
    work = whole_micro_batches(micro_batches, chunks)
    rows = tuple(taking_turns(*work, ahead=stages - stage) for stage in range(stages))
    return Schedule("1f1b", rows, micro_batches, chunks)


def wavefront(stages: int, micro_batches: int = 1, chunks: int = 8) -> Schedule:
    """The chunks of a sequence flow through the stages as micro-batches do: one micro-batch is enough to fill them.

    This is 1F1B in which single chunks take turns. The first backward is that of a *last* chunk, so the last stage must
    go chunks-1 forwards further ahead than in 1F1B, and so must all others: stage s holds at most
    chunks-1 + stages-s chunks, where 1F1B holds (stages-s) * chunks. That is enough to keep every stage busy:
    for equal costs the bubble is (stages-1)/(micro_batches*chunks + stages-1). With one chunk it *is* 1F1B.
    It leaves nothing to spare: where links are slow, each turn waits for them, which `one_f_one_b` with chunks hides.
    """
    check_sizes(stages, micro_batches, chunks)
    work = whole_micro_batches(micro_batches, chunks)
    forwards, backwards = ([[one] for unit in units for one in unit] for units in work)
    rows = tuple(taking_turns(forwards, backwards, ahead=chunks - 1 + stages - stage) for stage in range(stages))
    return Schedule("wavefront", rows, micro_batches, chunks)
