"""What takes turns in a schedule, and how: the tools that the schedules are made with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest

from course_lib.planning.schedules.actions import Action

Unit = list[Action]  # what is done without a break: a whole micro-batch, chunk by chunk, or a single chunk


def unit(kind: str, micro_batch: int, chunks: int, virtual: int = 0) -> Unit:
    """All chunks of a micro-batch: forward in order, backward in reverse."""
    order = range(chunks) if kind == "F" else reversed(range(chunks))
    return [Action(kind, micro_batch, chunk, virtual) for chunk in order]


def whole_micro_batches(micro_batches: int, chunks: int) -> tuple[list[Unit], list[Unit]]:
    """The forwards and the backwards, a unit for each micro-batch."""
    forwards, backwards = ([unit(kind, m, chunks) for m in range(micro_batches)] for kind in "FB")
    return forwards, backwards


def taking_turns(forwards: Sequence[Unit], backwards: Sequence[Unit], ahead: int) -> tuple[Action, ...]:
    """The first `ahead` forwards, then a backward and a forward in turn, until nothing is left."""
    turns = zip_longest(backwards, forwards[ahead:], fillvalue=[])
    return tuple(chain(*forwards[:ahead], *chain.from_iterable(turns)))


def numbered(pattern: Iterable[tuple[str, int]], micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """The actions of a pattern of (kind, virtual stage): the n-th time that one comes up, it is for micro-batch n.

    What comes up more often than there are micro-batches is left out.
    """
    row: list[Action] = []
    seen: Counter[tuple[str, int]] = Counter()
    for kind, virtual in pattern:
        if seen[kind, virtual] < micro_batches:
            row += unit(kind, seen[kind, virtual], chunks, virtual)
        seen[kind, virtual] += 1
    return tuple(row)


def check_sizes(stages: int, micro_batches: int, chunks: int, virtual: int = 1) -> None:
    """Refuse numbers that no schedule can have."""
    sizes = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks, "virtual": virtual}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value}: a schedule needs at least one")
