"""02.2 Every example once: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, TensorDataset

from course_lib.checks.exercise import Case, Exercise


def cases(seed: int) -> list[Case]:
    def case(part: str, count: int, ranks: int) -> Case:
        return Case(part, ranks, {"count": count, "seed": seed}, f"{count} examples, epochs 0 and 1")

    return [
        case("every example once", 4, 2),
        case("every example once", 7, 3),
        case("equal shares", 10, 4),
        case("a new order every epoch", 30, 2),
    ]


def drive(answer, count: int, seed: int):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # ranks do not draw alike, as in a real job
    return [list(map(int, answer(count, rank, ranks, epoch, seed))) for epoch in (0, 1)]


def judge(case: Case, shares: list) -> str | None:
    count = case.inputs["count"]
    for epoch in (0, 1):
        seen = sorted(index for share in shares for index in share[epoch])
        missing = sorted(set(range(count)) - set(seen))
        if missing:
            return f"epoch {epoch}: nobody has example {missing[0]} (of {count})"
        if len(seen) > count:
            twice = next(index for index in seen if seen.count(index) > 1)
            return f"epoch {epoch}: example {twice} is given out {seen.count(twice)} times"
    sizes = [len(share[0]) for share in shares]
    if case.part == "equal shares" and max(sizes) - min(sizes) > 1:
        return f"the ranks have {sizes} examples: shares may differ by one at most"
    if case.part == "a new order every epoch" and shares[0][0] == shares[0][1]:
        return "rank 0 has the same examples in the same order in both epochs"
    if case.part == "a new order every epoch" and shares[0][0] in (list(range(0, count, 2)), list(range(count // 2))):
        return "the examples are not shuffled"
    return None


def repeats_to_even_out(count, rank, ranks, epoch, seed):
    """`DistributedSampler` repeats examples until the ranks have equally many. For training that is harmless; an
    evaluation counts those examples twice.
    """
    sampler = DistributedSampler(TensorDataset(torch.arange(count)), ranks, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def drops_the_tail(count, rank, ranks, epoch, seed):
    """You cut the order to a multiple of the number of ranks: the last examples of every epoch are never seen. Let
    some ranks have one example more.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
    return order[: count // ranks * ranks][rank::ranks]


def shuffles_on_its_own(count, rank, ranks, epoch, seed):
    """Every rank shuffles for itself, so their shares overlap: some examples come twice, others never. The order
    must be the same on all ranks: seed a generator of its own for it.
    """
    order = torch.randperm(count)
    return order[rank::ranks]


def forgets_the_epoch(count, rank, ranks, epoch, seed):
    """Every epoch has the same order. The epoch must change the seed, as `set_epoch` does for
    `DistributedSampler`.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[rank::ranks]


def gives_the_rest_to_the_last(count, rank, ranks, epoch, seed):
    """The last rank gets its share and all that is left over; the others wait for it in every epoch. Deal the rest
    out, one example each.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
    each = count // ranks
    return order[rank * each : (rank + 1) * each if rank < ranks - 1 else count]


EXERCISE = Exercise(
    number="02.2",
    title="Every example once",
    answer="my_share",
    level="exercise",
    minutes=15,
    parts={"every example once": 2, "equal shares": 1, "a new order every epoch": 1},
    read="4 · Who reads what",
    hints=(
        "All ranks must see the same order of all examples, and each take other places of it. What makes two ranks "
        "shuffle alike without a message?",
        "`torch.randperm(count, generator=torch.Generator().manual_seed(...))` depends on the seed alone. The seed may "
        "depend on the epoch, and must not depend on the rank.",
        "`order[rank::ranks]` takes every `ranks`-th place: the shares differ by one at most.",
    ),
    cases=cases,
    drive=drive,
    judge=judge,
    mistakes=(
        repeats_to_even_out,
        drops_the_tail,
        shuffles_on_its_own,
        forgets_the_epoch,
        gives_the_rest_to_the_last,
    ),
)
