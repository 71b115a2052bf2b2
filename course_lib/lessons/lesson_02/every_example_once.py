"""02.2 Every example once: the check, and the wrong answers it recognizes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from course_lib.checks.exercise import Case, Cost, Exercise, draw
from course_lib.checks.texts import texts
from course_lib.lessons.processes import as_process
from course_lib.lessons.symptoms import observed

SHUFFLED = "a new order every epoch"


def cases(seed: int) -> list[Case]:
    # The answer receives a fixed seed, not the cases' seed, from which it could derive the inputs.
    def case(part: str, count: int, ranks: int, begin: int = 1) -> Case:
        says = f"{count} example{'s' * (count != 1)}, epochs 0 and 1"
        return Case(part, ranks, {"count": count, "seed": begin}, says)

    drawn = draw(lambda chance: (chance.randint(1, 99), chance.choice((2, 3, 4))), 8, seed)
    return [
        case("every example once", 4, 2),
        case("every example once", 1, 2),
        case("every example once", 2, 3),
        case("every example once", 7, 3),
        *(case("every example once", count, ranks) for count, ranks in drawn),
        case("equal shares", 3, 4),
        case("equal shares", 10, 4),
        case("equal shares", 11, 3),
        *(case("equal shares", count + 1, ranks) for count, ranks in drawn),
        case(SHUFFLED, 30, 2),
        case(SHUFFLED, 61, 3),
        case(SHUFFLED, 90, 4, begin=0),
    ]


def drive(answer, count: int, seed: int):
    from course_lib.core.metering import meter

    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # ranks draw different random numbers, as in a real job
    # The other seed is far away, because `seed + epoch` is a valid way to combine the two.
    calls = {"epoch 0": (0, 0), "epoch 1": (1, 0), "another seed": (0, 1000), "again": (0, 0)}
    with meter() as spent:
        with as_process(rank, answer):
            shares = {
                name: list(map(int, answer(count, rank, ranks, epoch, seed + further)))
                for name, (epoch, further) in calls.items()
            }
        here = [list(map(int, answer(count, each, ranks, 0, seed))) for each in range(ranks)]
    return {
        "shares": shares,
        "in one process": here[rank],
        "of all ranks": here,
        "said": sum(spent.calls.values()) + spent.messages,
        "barriers": spent.calls.get("barrier", 0),
    }


def judge(case: Case, values: list) -> str | None:
    count, shares = case.inputs["count"], [value["shares"] for value in values]
    for name in shares[0]:
        problem = _not_once([share[name] for share in shares], count)
        if problem:
            return f"{name}: {problem}"
    for name in shares[0]:
        sizes = [len(share[name]) for share in shares]
        if case.part == "equal shares" and max(sizes) - min(sizes) > 1:
            return f"{name}: the ranks have {sizes} examples, and shares may differ by at most one"
    for rank, share in enumerate(shares):
        if share["again"] != share["epoch 0"]:
            return f"rank {rank} was asked twice for epoch 0, and returned two different shares"
    for rank, value in enumerate(values):
        for other, share in enumerate(value["of all ranks"]):
            if share != shares[other]["epoch 0"]:
                return f"on rank {rank}, the share of rank {other} is {share}, but rank {other} has a different one"
    return _not_shuffled(shares) if case.part == SHUFFLED else None


def _not_once(shares: list[list[int]], count: int) -> str | None:
    seen = Counter(index for share in shares for index in share)
    missing = next((index for index in range(count) if index not in seen), None)
    strange = next((index for index in seen if not 0 <= index < count), None)
    index, times = seen.most_common(1)[0] if seen else (0, 0)
    if strange is not None:
        return f"there is no example {strange}: they are numbered from 0 to {count - 1}"
    if missing is not None:
        return f"nobody has example {missing} (of {count})"
    return f"example {index} is given out {times} times" if times > 1 else None


def _not_shuffled(shares: list[dict[str, list[int]]]) -> str | None:
    for rank, share in enumerate(shares):
        if _sorted(share["epoch 0"]) or _sorted(share["epoch 1"]):
            return f"rank {rank} has its examples sorted, {share['epoch 0'][:5]} ..."
        if _even_steps(share["epoch 0"]) or _even_steps(share["epoch 1"]):
            return f"rank {rank} has its examples in a regular order, {share['epoch 0'][:5]} ...: they are not shuffled"
        if share["epoch 0"] == share["epoch 1"]:
            return f"rank {rank} has the same examples in the same order in both epochs"
        if share["epoch 0"] == share["another seed"]:
            return f"rank {rank} has the same examples in the same order in epoch 0, whatever the seed"
    return _kept_together(shares)


def _even_steps(share: list[int]) -> bool:
    """Return whether most examples are at the same distance from their predecessor."""
    steps = Counter(after - before for before, after in pairwise(share))
    return 2 * max(steps.values()) > len(share)


def _sorted(share: list[int]) -> bool:
    """Return whether the examples are sorted, ascending or descending, with the uneven gaps that a shuffle leaves."""
    steps = {after - before for before, after in pairwise(share)}
    return sorted(share) in (share, share[::-1]) and len(steps) > 2


def _kept_together(shares: list[dict[str, list[int]]]) -> str | None:
    before = {frozenset(share["epoch 0"]): rank for rank, share in enumerate(shares)}
    for rank, share in enumerate(shares):
        giver = before.get(frozenset(share["epoch 1"]))
        if giver is not None:
            whose = "the same examples as in" if giver == rank else f"exactly the examples that rank {giver} had in"
            return f"in epoch 1, rank {rank} has {whose} epoch 0, in a different order"
    return None


def costs(case: Case, values: list) -> list[Cost]:
    return [Cost("messages and collectives of a rank, in all calls", max(value["said"] for value in values), 0)]


def repeats(case: Case, values: list[Any]) -> bool:
    """Some examples are given out twice so that all ranks have the same number, as `DistributedSampler` does it. In
    training, that is a small bias; in an evaluation, it is a wrong result. Give some ranks one example fewer.
    """
    shares, count = [value["shares"]["epoch 0"] for value in values], case.inputs["count"]
    padded = -(-count // case.ranks)
    all_there = len({index for share in shares for index in share}) == count
    return all_there and [len(share) for share in shares] == [padded] * case.ranks and padded * case.ranks > count


def drops_examples(case: Case, values: list[Any]) -> bool:
    """You cut the order to a multiple of the number of ranks: the last examples of every epoch are never seen. Give
    some ranks one more example.
    """
    shares, count = [value["shares"]["epoch 0"] for value in values], case.inputs["count"]
    seen = [index for share in shares for index in share]
    return len(set(seen)) == len(seen) == count // case.ranks * case.ranks < count


@observed
def depends_on_the_process(case: Case, values: list[Any]) -> bool:
    """The order depends on the process that computes it: on the hash of a string, which every Python process salts
    differently, or on a process id, a host name or a clock. The ranks of a real job are separate processes, so each
    would have a different order. Derive the generator's seed from `seed` and `epoch` only.
    """
    return not _complete(case, values) and not _not_once([v["in one process"] for v in values], case.inputs["count"])


def ranks_disagree(case: Case, values: list[Any]) -> bool:
    """The shares overlap: some examples appear twice, others never. Each rank picks its share from an order of its own.
    The order must be the same on all ranks: draw it from a generator that is seeded with `seed` and `epoch` only.
    """
    shares, count = [value["shares"]["epoch 0"] for value in values], case.inputs["count"]
    seen = Counter(index for share in shares for index in share)
    each_once = all(len(set(share)) == len(share) for share in shares)
    return each_once and sum(seen.values()) == count and len(seen) < count


@observed
def everybody_reads_all(case: Case, values: list[Any]) -> bool:
    """Every rank has all of the examples. A rank should read only its part of the order: every `ranks`-th example, or a
    contiguous range.
    """
    return all(len(set(value["shares"]["epoch 0"])) == case.inputs["count"] for value in values)


def leaves_the_rest_to_one(case: Case, values: list[Any]) -> bool:
    """One rank gets its share and all that is left over, and the others wait for it in every epoch. Distribute the
    remainder, one example per rank.
    """
    sizes = sorted(len(value["shares"]["epoch 0"]) for value in values)
    return sum(sizes) == case.inputs["count"] and sizes[-2] < sizes[-1] - 1


def rounds_the_share_up(case: Case, values: list[Any]) -> bool:
    """Each rank takes the share rounded up, until nothing is left, so the last ranks get little or nothing. Shares
    differ by at most one if you distribute the *remainder*, one example to each rank in turn.
    """
    sizes, count = [len(value["shares"]["epoch 0"]) for value in values], case.inputs["count"]
    most = -(-count // case.ranks)
    return sizes == [min(most, max(0, count - rank * most)) for rank in range(case.ranks)] and sizes[-1] < most - 1


@observed
def epoch_does_nothing(case: Case, values: list[Any]) -> bool:
    """Epochs 0 and 1 have the same order. The epoch must change the seed, as `set_epoch` does for
    `DistributedSampler`.
    """
    return _complete(case, values) and all(v["shares"]["epoch 0"] == v["shares"]["epoch 1"] for v in values)


def seed_does_nothing(case: Case, values: list[Any]) -> bool:
    """The order does not depend on `seed`, at least not in epoch 0, so all runs of this program would read the examples
    in the same order in that epoch. The generator's seed must depend on both `seed` and `epoch`, in every epoch.
    """
    return _complete(case, values) and all(v["shares"]["epoch 0"] == v["shares"]["another seed"] for v in values)


@observed
def another_answer_each_time(case: Case, values: list[Any]) -> bool:
    """The order depends on something besides the arguments: on earlier random draws, or on a clock. A run that restarts
    after a crash must read what it would have read without the crash.
    """
    return any(value["shares"]["again"] != value["shares"]["epoch 0"] for value in values)


@observed
def takes_another_rank(case: Case, values: list[Any]) -> bool:
    """Asked for another rank's share, your function doesn't return what that rank reads. Use the arguments `rank` and
    `ranks`, not `dist.get_rank()` or the environment.
    """
    shares = [value["shares"]["epoch 0"] for value in values]
    return _complete(case, values) and any(value["of all ranks"] != shares for value in values)


@observed
def keeps_its_examples(case: Case, values: list[Any]) -> bool:
    """Each rank has the same examples in every epoch, and only their order changes. This is what you get if you split
    first and shuffle afterwards. Shuffle all of them, anew in every epoch, then split.
    """
    own = (set(value["shares"]["epoch 0"]) == set(value["shares"]["epoch 1"]) for value in values)
    return _complete(case, values) and case.part == SHUFFLED and all(own)


@observed
def swaps_whole_shares(case: Case, values: list[Any]) -> bool:
    """The same examples stay together: what one rank reads in epoch 0, another reads in epoch 1. This is what you get
    from a single shuffle that is rotated or reversed from epoch to epoch. Draw a new order in every epoch.
    """
    return _complete(case, values) and case.part == SHUFFLED and bool(_kept_together([v["shares"] for v in values]))


@observed
def sorts_its_share(case: Case, values: list[Any]) -> bool:
    """Each rank reads its examples sorted, no matter how they were shuffled before. Keep the order of the shuffle."""
    shares = [value["shares"][epoch] for value in values for epoch in ("epoch 0", "epoch 1")]
    return case.part == SHUFFLED and _complete(case, values) and any(map(_sorted, shares))


@observed
def not_shuffled(case: Case, values: list[Any]) -> bool:
    """The order is a regular one. Neighboring examples are often similar (the same speaker, the same book), and a batch
    of them is a bad sample: shuffle all examples, for instance with `torch.randperm`.
    """
    shares = [value["shares"][epoch] for value in values for epoch in ("epoch 0", "epoch 1")]
    return case.part == SHUFFLED and _complete(case, values) and any(map(_even_steps, shares))


@observed
def asks_the_others(case: Case, values: list[Any]) -> bool:
    """The ranks talk to each other to agree on the order. They don't need to: the same seed gives the same order on
    every rank.
    """
    return any(value["said"] > value["barriers"] for value in values)


@observed
def waits_for_the_others(case: Case, values: list[Any]) -> bool:
    """The ranks wait for each other at a barrier. They don't need to: no rank uses anything from another one."""
    return any(value["barriers"] for value in values)


def _complete(case: Case, values: list[Any]) -> bool:
    return _not_once([value["shares"]["epoch 0"] for value in values], case.inputs["count"]) is None


EXERCISE = Exercise(
    **texts("02.2"),
    cases=cases,
    drive=drive,
    judge=judge,
    costs=costs,
    symptoms=(
        repeats,
        everybody_reads_all,
        drops_examples,
        depends_on_the_process,
        ranks_disagree,
        another_answer_each_time,
        rounds_the_share_up,
        leaves_the_rest_to_one,
        sorts_its_share,
        not_shuffled,
        epoch_does_nothing,
        seed_does_nothing,
        keeps_its_examples,
        swaps_whole_shares,
        asks_the_others,
        waits_for_the_others,
        takes_another_rank,
    ),
)
