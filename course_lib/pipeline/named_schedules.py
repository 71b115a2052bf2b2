"""The well-known pipeline schedules, the tools to write new ones, and recomputation for any of them.

Naive, GPipe, 1F1B and the wavefront put one part of the model on each stage. Interleaved 1F1B and looped breadth-first
put several parts on each: virtual stages. The zero-bubble schedules (Qi et al., arXiv 2401.10241) split the backward
pass: the previous stage waits only for the gradients of a stage's *inputs*. The gradients of its weights can be
computed any time before the update, and fill what would be a bubble.

`from_torch` converts the schedules of `torch.distributed.pipelining`. PyTorch computes the order of all ranks' actions
when it creates a schedule. We read it from private attributes, which may change from version to version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, repeat, zip_longest
from types import SimpleNamespace
from typing import Any

from course_lib.pipeline.actions import LAYOUTS, Action, IllegalSchedule, Layout
from course_lib.pipeline.schedule import Schedule, check

Unit = list[Action]  # actions that run without interruption: a whole micro-batch, chunk by chunk, or a single chunk


def unit(kind: str, micro_batch: int, chunks: int, virtual: int = 0) -> Unit:
    """Return the actions for all chunks of a micro-batch: forward in order, backward in reverse."""
    order = range(chunks) if kind == "F" else reversed(range(chunks))
    return [Action(kind, micro_batch, chunk, virtual) for chunk in order]


def whole_micro_batches(micro_batches: int, chunks: int) -> tuple[list[Unit], list[Unit]]:
    """Return the forward passes and the backward passes, one unit per micro-batch."""
    forwards, backwards = ([unit(kind, m, chunks) for m in range(micro_batches)] for kind in "FB")
    return forwards, backwards


def taking_turns(forwards: Sequence[Unit], backwards: Sequence[Unit], ahead: int) -> tuple[Action, ...]:
    """Return the first `ahead` forward passes, then alternate backward and forward passes until nothing is left."""
    pairs = zip_longest(backwards, forwards[ahead:], fillvalue=[])
    return tuple(chain(*forwards[:ahead], *chain.from_iterable(pairs)))


def numbered(pattern: Iterable[tuple[str, int]], micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """Turn a pattern of (kind, virtual stage) into actions: the n-th occurrence is for micro-batch n, if it exists."""
    row: list[Action] = []
    counts: Counter[tuple[str, int]] = Counter()
    for kind, virtual in pattern:
        if counts[kind, virtual] < micro_batches:
            row += unit(kind, counts[kind, virtual], chunks, virtual)
        counts[kind, virtual] += 1
    return tuple(row)


def check_sizes(stages: int, micro_batches: int, chunks: int, virtual: int = 1) -> None:
    """Raise ValueError if a size is less than 1."""
    sizes = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks, "virtual": virtual}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value}: a schedule needs at least one")


def naive(stages: int, micro_batches: int = 1, chunks: int = 1) -> Schedule:
    """Each micro-batch goes all the way forward and back before the next one starts.

    With one chunk, one stage works at a time, and the bubble is (stages-1)/stages for any number of micro-batches.
    With several chunks, a stage passes each one on as soon as it is done, so the stages overlap within a micro-batch.
    """
    check_sizes(stages, micro_batches, chunks)
    row = taking_turns(*whole_micro_batches(micro_batches, chunks), ahead=1)
    return Schedule("naive", (row,) * stages, micro_batches, chunks)


def gpipe(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """All forwards, then all backwards: every stage holds every micro-batch.

    The backwards begin with the first micro-batch, as in `torch.distributed.pipelining`; the paper begins with the last
    one. Time and memory are the same.
    """
    check_sizes(stages, micro_batches, chunks)
    row = taking_turns(*whole_micro_batches(micro_batches, chunks), ahead=micro_batches)
    return Schedule("gpipe", (row,) * stages, micro_batches, chunks)


def one_f_one_b(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Alternate one forward and one backward as soon as a stage can: stage s holds at most stages-s micro-batches."""
    check_sizes(stages, micro_batches, chunks)
    work = whole_micro_batches(micro_batches, chunks)
    rows = tuple(taking_turns(*work, ahead=stages - stage) for stage in range(stages))
    return Schedule("1f1b", rows, micro_batches, chunks)


def wavefront(stages: int, micro_batches: int = 1, chunks: int = 8) -> Schedule:
    """Chunks of a sequence flow through the stages as micro-batches do, so one micro-batch is enough to fill them.

    This is 1F1B in which single chunks alternate; with one chunk it *is* 1F1B. The first backward pass is for a *last*
    chunk, so all stages run chunks-1 forward passes further ahead than in 1F1B: stage s holds at most chunks-1 +
    stages-s chunks, while 1F1B holds (stages-s) * chunks. For equal costs the bubble is
    (stages-1)/(micro_batches*chunks + stages-1). With slow links, each turn waits for a message: there is no slack.
    """
    check_sizes(stages, micro_batches, chunks)
    work = whole_micro_batches(micro_batches, chunks)
    forwards, backwards = ([[action] for unit in units for action in unit] for units in work)
    rows = tuple(taking_turns(forwards, backwards, ahead=chunks - 1 + stages - stage) for stage in range(stages))
    return Schedule("wavefront", rows, micro_batches, chunks)


def interleaved_one_f_one_b(stages: int, micro_batches: int, chunks: int = 1, virtual: int = 2) -> Schedule:
    """1F1B over `virtual` parts per stage (Narayanan et al., arXiv 2104.04473): a bubble `virtual` times smaller.

    Micro-batches go in rounds of about `stages` each: a round passes through a stage's first part, then its second, and
    so on. Passes of a part are `virtual` times shorter, and so is the time to fill and drain the pipeline. The price is
    `virtual` times as many messages, and memory: stage s holds at most (virtual-1) * round + 2*(stages-s) - 1 pieces of
    one micro-batch in one part. Megatron requires `stages` to divide `micro_batches`; here rounds may differ by one.
    """
    check_sizes(stages, micro_batches, chunks, virtual)
    if virtual == 1:
        return replace(one_f_one_b(stages, micro_batches, chunks), name="interleaved")
    rounds = rounds_of(stages, micro_batches)
    forwards = [unit("F", m, chunks, v) for members in rounds for v in range(virtual) for m in members]
    backwards = [unit("B", m, chunks, v) for members in rounds for v in reversed(range(virtual)) for m in members]
    first = (virtual - 1) * len(rounds[0]) + 1  # forward passes of the last stage before its first backward pass
    rows = tuple(taking_turns(forwards, backwards, first + 2 * (stages - 1 - stage)) for stage in range(stages))
    return Schedule("interleaved", rows, micro_batches, chunks, virtual)


def rounds_of(stages: int, micro_batches: int) -> list[range]:
    """Return the micro-batches in rounds of at least `stages`, as equal as possible, larger rounds first."""
    count = max(1, micro_batches // stages)
    size, extra = divmod(micro_batches, count)
    bounds = [number * size + min(number, extra) for number in range(count + 1)]
    return [range(start, end) for start, end in pairwise(bounds)]


def looped_bfs(stages: int, micro_batches: int, chunks: int = 1, virtual: int = 2) -> Schedule:
    """GPipe over `virtual` parts per stage (Lamy-Poirier, arXiv 2211.05953): breadth first, holding every micro-batch.

    All micro-batches pass through a stage's first part, then its second, and so on; the backward passes do the same,
    last micro-batch first. The bubble is as small as in interleaved 1F1B. A part's work is contiguous, so its weights
    are needed only once and its gradients are ready at one time, which suits sharded weights.
    """
    check_sizes(stages, micro_batches, chunks, virtual)
    forwards = [unit("F", m, chunks, v) for v in range(virtual) for m in range(micro_batches)]
    backwards = [unit("B", m, chunks, v) for v in reversed(range(virtual)) for m in reversed(range(micro_batches))]
    row = tuple(chain(*forwards, *backwards))
    return Schedule("looped-bfs", (row,) * stages, micro_batches, chunks, virtual)


F0, B0, W0 = ("F", 0), ("B", 0), ("W", 0)
F1, B1, W1 = ("F", 1), ("B", 1), ("W", 1)


def zero_bubble_h1(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """1F1B with a split backward pass: a third of the bubble if F, B and W take equally long, at the same peak memory.

    Stage s delays the weight gradients of s micro-batches. With the activations held for backward passes, this adds up
    to at most `stages` micro-batches on every stage: as many as stage 0 holds in 1F1B.
    """
    check_sizes(stages, micro_batches, chunks)
    rows = []
    for stage in range(stages):
        begin = [F0] * (stages - 1 - stage) + [F0, B0] * stage
        rows.append(numbered(chain(begin, *repeat([F0, B0, W0], micro_batches)), micro_batches, chunks))
    return Schedule("zb-h1", tuple(rows), micro_batches, chunks)


def zero_bubble_v(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Two parts per stage in a V layout, with a split backward pass: the only bubble is filling the pipeline once.

    The last part is on stage 0, so the backward pass can start there immediately. If F, B and W take equally long and
    there are at least 2*stages-1 micro-batches, a stage is idle for only stages-1 actions in total. Every stage holds
    at most `stages` micro-batches, like stage 0 in 1F1B.
    """
    check_sizes(stages, micro_batches, chunks)
    at_least = max(2 * stages - 1, micro_batches)  # the pattern needs this many; `numbered` drops the extra ones
    rows = []
    for stage in range(stages):
        remaining = stages - stage
        fill = [F0] * (2 * remaining - 1) + [F1, F0] * stage + [F1, B1, W1] * remaining
        steady = [F0, B0, W0, F1, B1, W1] * (at_least - stages)
        drain = [B0, B1] * stage + [B0, W0] * remaining + [W1] * stage + [W0] * stage
        rows.append(numbered(fill + steady + drain, micro_batches, chunks))
    return Schedule("zb-v", tuple(rows), micro_batches, chunks, virtual=2, layout="v")


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
VIRTUAL = {"interleaved": 2, "looped-bfs": 2, "zb-v": 2}  # how many parts of the model each stage usually has, if not 1
ANY_VIRTUAL = ("interleaved", "looped-bfs")  # take any number of virtual stages


def make_schedule(
    name: str, stages: int, micro_batches: int, chunks: int = 1, virtual: int | None = None, recompute: bool = False
) -> Schedule:
    """Return the schedule with this name and size. `virtual` defaults to the schedule's usual number: 1 or 2."""
    if name not in SCHEDULES:
        raise ValueError(f"schedule={name!r}: choose {', '.join(SCHEDULES)}, or give a Schedule")
    usual = VIRTUAL.get(name, 1)
    if name in ANY_VIRTUAL:
        schedule = SCHEDULES[name](stages, micro_batches, chunks, usual if virtual is None else virtual)
    elif virtual in (None, usual):
        schedule = SCHEDULES[name](stages, micro_batches, chunks)
    else:
        raise ValueError(
            f"virtual={virtual}: {name} has {usual} virtual stage{'s' * (usual > 1)} per stage; with "
            f"{' or '.join(ANY_VIRTUAL)} you can choose how many"
        )
    return with_recomputation(schedule) if recompute else schedule


def with_recomputation(schedule: Schedule) -> Schedule:
    """Return the schedule with activation recomputation: each forward pass is rerun just before its backward pass.

    A stage then holds the activations of one action at a time, and runs one extra forward pass for each.
    """
    rows = []
    for row in schedule.stages:
        recomputed = {action.piece for action in row if action.kind == "R"}
        pairs = ([replace(a, kind="R"), a] if a.kind == "B" and a.piece not in recomputed else [a] for a in row)
        rows.append(tuple(chain.from_iterable(pairs)))
    return replace(schedule, name=f"{schedule.name} + recomputation", stages=tuple(rows))


# In PyTorch, B is a whole backward pass, and I only the input gradients.
TORCH_KINDS = {"F": "F", "B": "B", "I": "B", "W": "W"}
OVERLAPPED = "OVERLAP_F_B"  # a forward and a backward pass at the same time
NO_WORK = {"SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"}  # the others imply these


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
            f"PyTorch decides what {kind.__name__} does next while it runs, so there is no order to read: "
            "use gpipe or one_f_one_b from course_lib.pipeline"
        )
    name = f"torch {kind.__name__.removeprefix('Schedule')}"
    try:
        order, layout = _order_of(kind, stages, micro_batches, virtual)
        rows = tuple(tuple(_actions(order[rank], rank, layout)) for rank in range(stages))
    except (AttributeError, TypeError, KeyError) as error:
        raise NotImplementedError(
            f"this PyTorch ({torch.__version__}) keeps the order of {kind.__name__} where the course cannot find it "
            f"({type(error).__name__}: {error}): build the schedule with course_lib.pipeline.make_schedule"
        ) from error
    schedule = Schedule(name, rows, micro_batches, 1, virtual, layout.style)
    try:
        check(schedule)
    except IllegalSchedule as reason:
        raise IllegalSchedule(f"{name}, {stages} stages, {micro_batches} micro-batches: {reason}") from None
    return schedule


def _order_of(kind: Any, stages: int, micro_batches: int, virtual: int) -> tuple[Mapping[int, Iterable[Any]], Layout]:
    """Return each rank's actions in PyTorch's schedule, and the layout of its parts."""
    # Stand-ins for the stages of rank 0: the sizes that PyTorch needs to create a schedule, but no model.
    sizes = {"group_size": stages, "group_rank": 0, "num_stages": stages * virtual, "submod": None}
    parts = [
        SimpleNamespace(**sizes, stage_index=number * stages, is_first=number == 0, is_last=number == virtual - 1)
        for number in range(virtual)
    ]
    schedule = kind(parts, micro_batches)
    owner = schedule.stage_index_to_group_rank
    for style in LAYOUTS:
        layout = Layout(stages, virtual, style)
        if all(layout.stage_at(position)[0] == owner[position] for position in range(layout.positions)):
            return schedule.pipeline_order, layout
    raise KeyError(f"no layout puts the parts on ranks {owner}")


def _actions(order: Iterable[Any], rank: int, layout: Layout) -> Iterable[Action]:
    """Yield a rank's actions. PyTorch has None if a rank waits; we skip it, since waits follow from dependencies."""
    for action in order:
        if action is None or action.computation_type.value in NO_WORK:
            continue
        if action.computation_type.value == OVERLAPPED:
            yield from _actions(action.sub_actions, rank, layout)
            continue
        stage, virtual = layout.stage_at(action.stage_index)
        if stage != rank:
            raise KeyError(f"rank {rank} does {action}, which belongs to rank {stage}")
        yield Action(TORCH_KINDS[action.computation_type.value], action.microbatch_index, 0, virtual)
