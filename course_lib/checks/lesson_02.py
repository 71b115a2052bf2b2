"""Exercises of lesson 02, data parallelism: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from course_lib.checks.exercise import Case, Exercise, same_as, seeded

# 02.1 -----------------------------------------------------------------------------------------------------------------


def average_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, names: list[str], says: str) -> Case:
        gradients = [
            {name: torch.randn(2, generator=generator, dtype=torch.float64) for name in names} for _ in range(ranks)
        ]
        return Case(part, ranks, {"gradients": gradients}, says)

    return [
        case("the mean", 2, ["weight"], "one parameter of two numbers"),
        case("the mean", 3, ["weight", "bias"], "two parameters of two numbers"),
        case("unused parameters", 2, ["bias"], "a parameter that has no gradient, before one that has"),
    ]


def drive_average(answer, gradients: list[dict[str, Tensor]]):
    model = nn.Module()
    for name in ("weight", "bias"):
        model.register_parameter(name, nn.Parameter(torch.ones(2, dtype=torch.float64)))
        if name in gradients[dist.get_rank()]:
            getattr(model, name).grad = gradients[dist.get_rank()][name]
    answer(model)
    return {name: (parameter.detach(), parameter.grad) for name, parameter in model.named_parameters()}


def right_average(case: Case) -> list:
    gradients = case.inputs["gradients"]
    means = {name: torch.stack([each[name] for each in gradients]).mean(0) for name in gradients[0]}
    ones = torch.ones(2, dtype=torch.float64)
    return [{name: (ones, means.get(name)) for name in ("weight", "bias")}] * case.ranks


def adds_up(model):
    """This is the sum of the gradients. The loss is a mean over all examples, so its gradient is the mean over the
    ranks: divide by their number, or your learning rate is as many times too large.
    """
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def averages_the_parameter(model):
    """The gradients are still each rank's own. Averaging the *parameters* changes nothing here: they were equal.
    It is `parameter.grad` that differs.
    """
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


def stops_at_the_first(model):
    """A parameter without a gradient ends your loop, and those after it keep their own. Skip that one parameter,
    and go on.
    """
    for parameter in model.parameters():
        if parameter.grad is None:
            return
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def takes_rank_0s(model):
    """Every rank has rank 0's gradient now: what the other ranks have learned from their examples is lost. A
    broadcast copies, an all-reduce adds up.
    """
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.broadcast(parameter.grad, src=0)


def forgets_the_unused(model):
    """A parameter that the loss does not depend on has no gradient: `grad` is None, and there is nothing to send."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


AVERAGE = Exercise(
    number="02.1",
    title="Average the gradients by hand",
    answer="average_gradients",
    level="warm-up",
    minutes=5,
    parts={"the mean": 2, "unused parameters": 1},
    read="2 · By hand",
    hints=(
        "Which call leaves the sum over all ranks in a tensor, on every rank?",
        "`dist.all_reduce(tensor)` adds up in place. What makes a mean of a sum?",
        "A parameter that took no part in the forward pass has `grad` None: there is nothing to send.",
    ),
    cases=average_cases,
    drive=drive_average,
    judge=same_as(right_average),
    mistakes=(
        adds_up,
        averages_the_parameter,
        stops_at_the_first,
        takes_rank_0s,
        forgets_the_unused,
    ),
)

# 02.2 -----------------------------------------------------------------------------------------------------------------


def share_cases(seed: int) -> list[Case]:
    def case(part: str, count: int, ranks: int) -> Case:
        return Case(part, ranks, {"count": count, "seed": seed}, f"{count} examples, epochs 0 and 1")

    return [
        case("every example once", 4, 2),
        case("every example once", 7, 3),
        case("equal shares", 10, 4),
        case("a new order every epoch", 30, 2),
    ]


def drive_share(answer, count: int, seed: int):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # ranks do not draw alike, as in a real job
    return [list(map(int, answer(count, rank, ranks, epoch, seed))) for epoch in (0, 1)]


def judge_share(case: Case, shares: list) -> str | None:
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
    sampler = DistributedSampler(range(count), ranks, rank, seed=seed)
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


SHARE = Exercise(
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
    cases=share_cases,
    drive=drive_share,
    judge=judge_share,
    mistakes=(
        repeats_to_even_out,
        drops_the_tail,
        shuffles_on_its_own,
        forgets_the_epoch,
        gives_the_rest_to_the_last,
    ),
)

# 02.3 -----------------------------------------------------------------------------------------------------------------


def evaluate_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, counts: list[int], says: str) -> Case:
        totals = [torch.rand(count, generator=generator, dtype=torch.float64).sum().item() for count in counts]
        return Case(part, len(counts), {"totals": totals, "counts": counts}, says)

    return [
        case("the mean of all examples", [2, 2], "2 examples on each"),
        case("the mean of all examples", [5, 1, 2], "5, 1 and 2 examples"),
        case("a rank without examples", [3, 0], "3 examples on rank 0, none on rank 1"),
    ]


def drive_evaluate(answer, totals: list[float], counts: list[int]):
    return float(answer(totals[dist.get_rank()], counts[dist.get_rank()]))


def right_evaluation(case: Case) -> list[float]:
    return [sum(case.inputs["totals"]) / sum(case.inputs["counts"])] * case.ranks


def mean_of_means(total, count):
    """This is the mean of the ranks' means: an example on a rank with few of them weighs more than one on a rank
    with many. Add up sums and counts, and divide once.
    """
    mean = torch.tensor(total / max(count, 1), dtype=torch.float64)
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def own_mean(total, count):
    """Every rank returns the mean of its own examples. The ranks' sums and counts must be added up first:
    `dist.all_reduce`.
    """
    return total / max(count, 1)


def divides_by_its_own_count(total, count):
    """You add up the losses of all ranks, and divide by a count that only this rank knows. The count must be added
    up, too.
    """
    whole = torch.tensor(total, dtype=torch.float64)
    dist.all_reduce(whole)
    return whole / (dist.get_world_size() * max(count, 1))


def only_rank_0_knows(total, count):
    """`dist.reduce` leaves the sum on one rank. Every rank needs it, or one will stop training early and the
    others will not: `dist.all_reduce`.
    """
    both = torch.tensor([total, count], dtype=torch.float64)
    dist.reduce(both, dst=0)
    return both[0] / both[1] if dist.get_rank() == 0 else 0.0


def skips_when_empty(total, count):
    """A rank that has no examples leaves without calling the collective, and the others wait for it for ever.
    Every rank calls every collective, with zeros if need be.
    """
    if count == 0:
        return 0.0
    both = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(both)
    return both[0] / both[1]


EVALUATE = Exercise(
    number="02.3",
    title="Evaluate together",
    answer="evaluate_together",
    level="exercise",
    minutes=10,
    parts={"the mean of all examples": 2, "a rank without examples": 1},
    read="4 · Who reads what",
    hints=(
        "Two numbers must travel, not one.",
        "Add up the losses of all ranks, and add up the counts of all ranks. Divide once.",
        "A rank without examples has something to say, too: that its sum is 0 and its count is 0.",
    ),
    cases=evaluate_cases,
    drive=drive_evaluate,
    judge=same_as(right_evaluation),
    mistakes=(
        own_mean,
        mean_of_means,
        divides_by_its_own_count,
        only_rank_0_knows,
    ),
    hanging=skips_when_empty,
)

EXERCISES = (AVERAGE, SHARE, EVALUATE)
