"""03.3 Batches that cannot hang: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import random

import torch.distributed as dist

from course_lib.checks.exercise import Case, Exercise

MOST_PADDING = 0.15
MOST_APART = 0.25


def cases(seed: int) -> list[Case]:
    shuffled = random.Random(seed)

    def case(part: str, ranks: int, lengths: list[int], cells: int) -> Case:
        says = f"at most {cells} cells, lengths {lengths if len(lengths) < 12 else f'{min(lengths)} to {max(lengths)}'}"
        return Case(part, ranks, {"lengths": lengths, "cells": cells}, says)

    length = 2 * shuffled.randint(2, 6)
    mixed = [step for step in range(2, 26) for _ in range(3)]
    long_and_short = [length for _ in range(6) for length in (20, 3)]
    shuffled.shuffle(mixed)
    return [
        case("equal counts", 2, [length] * 6, 5 * length // 2),
        case("equal counts", 2, long_and_short, 40 + shuffled.randint(0, 9)),
        case("little padding", 2, mixed, 100 + shuffled.randint(0, 9)),
        case("alike on all ranks", 3, mixed, 100 + shuffled.randint(0, 9)),
    ]


def drive(answer, lengths: list[int], cells: int):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return [list(map(int, batch)) for batch in answer(lengths, cells, rank, ranks)]


def judge(case: Case, parts: list) -> str | None:
    lengths, limit = case.inputs["lengths"], case.inputs["cells"]
    wrong = _given_out(parts, len(lengths))
    if wrong:
        return wrong
    cells = [[len(batch) * max((lengths[index] for index in batch), default=0) for batch in part] for part in parts]
    largest = max(map(max, cells))
    if largest > limit:
        return f"a batch has {largest} cells (sequences times the longest of them), more than {limit}"
    return _padded(lengths, cells) if case.part == "little padding" else _apart(cells, limit)


def _given_out(parts: list, count: int) -> str | None:
    """Whether every sequence is there once, in equally many batches on every rank."""
    seen = sorted(index for part in parts for batch in part for index in batch)
    missing = sorted(set(range(count)) - set(seen))
    if missing:
        return f"nobody has sequence {missing[0]} (of {count})"
    if len(seen) > count:
        twice = next(index for index in seen if seen.count(index) > 1)
        return f"sequence {twice} is given out {seen.count(twice)} times"
    counts = [len(part) for part in parts]
    if len(set(counts)) > 1:
        return f"the ranks have {counts} batches: some would wait for a batch that others do not have"
    return None


def _padded(lengths: list[int], cells: list[list[int]]) -> str | None:
    padding = 1 - sum(lengths) / sum(map(sum, cells))
    return f"{padding:.0%} of all cells are padding" if padding > MOST_PADDING else None


def _apart(cells: list[list[int]], limit: int) -> str | None:
    for number, ranks in enumerate(list(zip(*cells, strict=True))[:-1]):
        if max(ranks) - min(ranks) > MOST_APART * limit:
            return f"in update {number} the ranks have {list(ranks)} cells: some wait for others"
    return None


def _by_length(lengths, indices):
    return sorted(indices, key=lambda index: -lengths[index])


def _filled(lengths, order, cells):
    """Batches of neighbours, each as full as the limit allows, whoever is the longest."""
    batches = [[]]
    for index in order:
        longest = max(lengths[other] for other in [*batches[-1], index])
        if (len(batches[-1]) + 1) * longest > cells:
            batches.append([])
        batches[-1].append(index)
    return batches


def deals_out_batches(lengths, cells, rank, ranks):
    """You cut everything into batches and deal these out one by one: unless their number is a multiple of the ranks,
    some rank has one fewer, and the others hang in the last update. Decide on what *all* ranks take in an update, then
    deal that out.
    """
    return _filled(lengths, _by_length(lengths, range(len(lengths))), cells)[rank::ranks]


def drops_the_tail(lengths, cells, rank, ranks):
    """The counts are equal, because the last batches are thrown away: their sequences, here the shortest ones, are
    never trained on. A share may be smaller than the others, or even empty.
    """
    batches = _filled(lengths, _by_length(lengths, range(len(lengths))), cells)
    return batches[: len(batches) // ranks * ranks][rank::ranks]


def repeats_to_even_out(lengths, cells, rank, ranks):
    """To make the counts equal you give some sequences out twice. They weigh twice in the gradient; a share may rather
    be empty.
    """
    batches = _filled(lengths, _by_length(lengths, range(len(lengths))), cells)
    batches += batches[: -len(batches) % ranks]
    return batches[rank::ranks]


def cuts_its_own(lengths, cells, rank, ranks):
    """Each rank takes its sequences first and cuts batches from them on its own. One that has drawn the long sequences
    needs more batches than the others, and hangs. Sort and cut what all ranks have, and deal out last.
    """
    return _filled(lengths, _by_length(lengths, range(len(lengths))[rank::ranks]), cells)


def counts_tokens(lengths, cells, rank, ranks):
    """You limit the *real* steps of a batch. A rectangle has padding, too: its cells are its sequences times the
    longest of them, and these must fit.
    """
    batches = [[]]
    for index in _by_length(lengths, range(len(lengths))):
        if sum(lengths[other] for other in [*batches[-1], index]) > cells:
            batches.append([])
        batches[-1].append(index)
    batches += [[] for _ in range(-len(batches) % ranks)]
    return batches[rank::ranks]


def does_not_sort(lengths, cells, rank, ranks):
    """The sequences come as they are, so that a long one makes a whole batch of short ones long: much of what you
    compute is padding. Put sequences of similar length together.
    """
    batches = _filled(lengths, range(len(lengths)), cells)
    batches += [[] for _ in range(-len(batches) % ranks)]
    return batches[rank::ranks]


def limits_all_ranks_together(lengths, cells, rank, ranks):
    """You fill the limits of all ranks together, and then deal out: where the number of sequences is no multiple of
    the ranks, one rank gets more than fits. How many sequences as long as the longest fit on *one* rank? An update
    takes so many for each.
    """
    updates = _filled(lengths, _by_length(lengths, range(len(lengths))), cells * ranks)
    return [update[rank::ranks] for update in updates]


def long_ones_to_rank_0(lengths, cells, rank, ranks):
    """One rank has the long sequences and needs many batches; another has the short ones, and soon only empty batches:
    it waits. Every rank should have some of each length in every update.
    """
    order = _by_length(lengths, range(len(lengths)))
    each = -(-len(order) // ranks)
    parts = [_filled(lengths, order[start : start + each], cells) for start in range(0, len(order), each)]
    return parts[rank] + [[]] * (max(map(len, parts)) - len(parts[rank]))


EXERCISE = Exercise(
    number="03.3",
    title="Batches that cannot hang",
    answer="my_batches",
    level="build",
    minutes=30,
    parts={"equal counts": 2, "little padding": 1, "alike on all ranks": 2},
    read="4 · Less padding: bucketing by length",
    hints=(
        "Every rank knows all lengths. Let each work out the updates of *all* ranks, and pick its own part last.",
        "Sort by length, longest first. The first sequence of an update is its longest: how many of that length fit "
        "into `cells` on one rank? And on all of them?",
        "`update[rank::ranks]` deals an update out, so that neighbours in length go to different ranks.",
    ),
    cases=cases,
    drive=drive,
    judge=judge,
    mistakes=(
        deals_out_batches,
        drops_the_tail,
        repeats_to_even_out,
        cuts_its_own,
        counts_tokens,
        does_not_sort,
        limits_all_ranks_together,
        long_ones_to_rank_0,
    ),
)
