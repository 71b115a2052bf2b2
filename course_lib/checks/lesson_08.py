"""Exercises of lesson 08, when ranks hang: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, same_as, seeded


def _mean_of_all(total, count):
    both = torch.tensor([float(total), float(count)], dtype=torch.float64)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


# 08.1 -----------------------------------------------------------------------------------------------------------------


def report_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, counts: list[int], updates: int) -> Case:
        shape = (len(counts), updates, 2)
        gradients = torch.randn(shape, generator=generator, dtype=torch.float64)
        totals = torch.rand(shape[:2], generator=generator, dtype=torch.float64) * torch.tensor(counts).unsqueeze(1)
        errors = [[(total, count) for total in row] for row, count in zip(totals.tolist(), counts, strict=True)]
        plural = "s" if updates > 1 else ""
        says = f"{updates} update{plural}, evaluated on {counts} examples"
        return Case(part, len(counts), {"gradients": gradients, "errors": errors}, says)

    return [
        case("equal shares", [2, 2], 1),
        case("equal shares", [3, 3], 3),
        case("unequal shares", [1, 5, 2], 2),
    ]


def drive_report(answer, gradients: Tensor, errors: list):
    rank = dist.get_rank()
    sums, reports = answer(list(gradients[rank].clone()), errors[rank])
    return {"sums": list(sums), "reports": [float(report) for report in reports]}


def right_report(case: Case) -> list:
    sums = list(case.inputs["gradients"].sum(dim=0))
    means = [
        sum(total for total, _ in errors) / sum(count for _, count in errors)
        for errors in zip(*case.inputs["errors"], strict=True)
    ]
    return [{"sums": sums, "reports": means if rank == 0 else []} for rank in range(case.ranks)]


def _summed(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)
        yield gradient


def reports_its_own(gradients, errors):
    """Nothing hangs, and rank 0 reports the mean of its own share only. The other ranks have evaluated, too: add up
    their sums and counts, and let all ranks take part in that.
    """
    own = [total / count for total, count in errors]
    return list(_summed(gradients)), own if dist.get_rank() == 0 else []


def everyone_reports(gradients, errors):
    """All ranks report, and the log says everything as many times as there are ranks. All *evaluate*; only the report
    is rank 0's.
    """
    pairs = [(gradient, _mean_of_all(*error)) for gradient, error in zip(_summed(gradients), errors, strict=True)]
    return [gradient for gradient, _ in pairs], [mean for _, mean in pairs]


def reports_the_sum(gradients, errors):
    """You report the sum of all errors. It grows with the number of examples: divide it by the count of all ranks."""
    sums, reports = [], []
    for gradient, (total, _) in zip(_summed(gradients), errors, strict=True):
        sums.append(gradient)
        reports.append(_mean_of_all(total, 1 / dist.get_world_size()))
    return sums, reports if dist.get_rank() == 0 else []


def reports_once(gradients, errors):
    """There is one report, after the last update. It was wanted after each of them."""
    sums = list(_summed(gradients))
    mean = _mean_of_all(*errors[-1])
    return sums, [mean] if dist.get_rank() == 0 else []


def mean_of_means(gradients, errors):
    """The mean of the ranks' means: an example on a rank with few of them weighs more. Sums and counts travel, and the
    division happens once.
    """
    sums, reports = [], []
    for gradient, (total, count) in zip(_summed(gradients), errors, strict=True):
        sums.append(gradient)
        reports.append(_mean_of_all(total / count, 1))
    return sums, reports if dist.get_rank() == 0 else []


def evaluates_on_rank_0(gradients, errors):
    """A collective under `if rank == 0`: the others never call it, or meet it with their next gradient. Put the
    collective outside, where all ranks pass, and leave only the report inside.
    """
    sums, reports = [], []
    for gradient, error in zip(_summed(gradients), errors, strict=True):
        sums.append(gradient)
        if dist.get_rank() == 0:
            reports.append(_mean_of_all(*error))
    return sums, reports


REPORT = Exercise(
    number="08.1",
    title="One rank reports, all evaluate",
    answer="train_and_report",
    level="warm-up",
    minutes=10,
    parts={"equal shares": 1, "unequal shares": 1},
    read="3 · One rank does more",
    hints=(
        "Which calls in this program are collectives? Which ranks make each of them, and how often?",
        "Evaluating is work for all ranks. Printing is work for one.",
        "What travels is a sum and a count, `[total, count]`: both can be added up.",
    ),
    cases=report_cases,
    drive=drive_report,
    judge=same_as(right_report),
    mistakes=(
        reports_its_own,
        everyone_reports,
        reports_the_sum,
        reports_once,
        mean_of_means,
    ),
    hanging=evaluates_on_rank_0,
)

# 08.2 -----------------------------------------------------------------------------------------------------------------


def epoch_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, sizes: list[list[int]]) -> Case:
        batches = [[torch.rand(size, generator=generator, dtype=torch.float64) for size in rank] for rank in sizes]
        return Case(part, len(sizes), {"batches": batches}, f"batches of {sizes} examples")

    return [
        case("equally many", [[2, 2], [2, 2]]),
        case("unequally many", [[3, 1], [2], [1, 4, 2]]),
        case("a rank without batches", [[], [3, 2]]),
    ]


def drive_epoch(answer, batches: list):
    return {"losses": [float(loss) for loss in answer(batches[dist.get_rank()])]}


def right_epoch(case: Case) -> list:
    batches = case.inputs["batches"]
    updates = max(map(len, batches))
    losses = [torch.cat([mine[update] for mine in batches if update < len(mine)]) for update in range(updates)]
    return [{"losses": [examples.mean().item() for examples in losses]}] * case.ranks


def _updates(batches, op=dist.ReduceOp.MAX):
    updates = torch.tensor(len(batches))
    dist.all_reduce(updates, op=op)
    return int(updates)


def _batch(batches, update):
    return batches[update] if update < len(batches) else torch.empty(0, dtype=torch.float64)


def stops_at_the_shortest(batches):
    """All ranks stop when the first has run out: nothing hangs, and what the others have left is never trained on. Go
    on as long as *any* rank has a batch.
    """
    updates = _updates(batches, dist.ReduceOp.MIN)
    return [_mean_of_all(batches[update].sum(), len(batches[update])) for update in range(updates)]


def as_many_as_rank_0(batches):
    """All ranks make as many updates as rank 0 has batches. Another one may have more, and these are lost. All ranks
    must be asked: which all-reduce gives the largest of their numbers?
    """
    updates = torch.tensor(len(batches))
    dist.broadcast(updates, src=0)
    mine = (_batch(batches, update) for update in range(int(updates)))
    return [_mean_of_all(batch.sum(), len(batch)) for batch in mine]


def repeats_its_last(batches):
    """A rank that has run out gives its last batch again, and those examples count twice. An empty share is a share: a
    sum of 0 and a count of 0.
    """
    mine = ((batches or [torch.empty(0)])[min(update, len(batches) - 1)] for update in range(_updates(batches)))
    return [_mean_of_all(batch.sum(), len(batch)) for batch in mine]


def averages_zeros_in(batches):
    """A rank that has run out adds a mean of 0, which pulls the loss down, as `join()` does to gradients. It has no
    mean; it has a sum of 0 and a *count* of 0.
    """
    mine = (_batch(batches, update) for update in range(_updates(batches)))
    return [_mean_of_all(batch.sum() / max(1, len(batch)), 1) for batch in mine]


def mean_of_those_present(batches):
    """The mean of the means of those ranks that still have a batch: an example in a small batch weighs more than one
    in a large batch. Add up sums and counts.
    """
    mine = (_batch(batches, update) for update in range(_updates(batches)))
    return [_mean_of_all(batch.sum() / max(1, len(batch)), float(len(batch) > 0)) for batch in mine]


def own_batches_only(batches):
    """Each rank makes as many all-reduces as it has batches, and the one with the most waits for ever in the next. The
    number of updates must be agreed on before the first, and a rank without a batch takes part with nothing.
    """
    return [_mean_of_all(batch.sum(), len(batch)) for batch in batches]


EPOCH = Exercise(
    number="08.2",
    title="Uneven batches",
    answer="losses_of_epoch",
    level="exercise",
    minutes=15,
    parts={"equally many": 1, "unequally many": 2, "a rank without batches": 1},
    read="3 · One rank does more",
    hints=(
        "How many all-reduces does each rank of the program make? How could they all know the right number beforehand?",
        "`dist.all_reduce(tensor, op=dist.ReduceOp.MAX)` leaves the largest of the ranks' numbers on all of them.",
        "What does a rank without a batch add to the sum, and what to the count?",
    ),
    cases=epoch_cases,
    drive=drive_epoch,
    judge=same_as(right_epoch),
    mistakes=(
        stops_at_the_shortest,
        as_many_as_rank_0,
        repeats_its_last,
        averages_zeros_in,
        mean_of_those_present,
    ),
    hanging=own_batches_only,
)

# 08.3 -----------------------------------------------------------------------------------------------------------------

RATE = 0.1


def careful_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, bad: list[int], value: float) -> Case:
        gradients = torch.randn(ranks, 3, 2, generator=generator, dtype=torch.float64)
        gradients[bad, 1, 1] = value
        says = f"3 updates; in the second, {value} on {' and '.join(f'rank {rank}' for rank in bad)}"
        return Case(part, ranks, {"gradients": gradients}, says)

    return [
        case("a nan", 2, [0, 1], float("nan")),
        case("a nan on one rank", 2, [0], float("nan")),
        case("a nan on one rank", 3, [1], float("nan")),
        case("an infinite number", 2, [1], float("inf")),
    ]


def drive_careful(answer, gradients: Tensor):
    weights = answer(torch.ones(2, dtype=torch.float64), list(gradients[dist.get_rank()].clone()), RATE)
    return {"weights": [weight.clone() for weight in weights]}


def right_careful(case: Case) -> list:
    weight, weights = torch.ones(2, dtype=torch.float64), []
    for gradients in case.inputs["gradients"].unbind(dim=1):
        if gradients.isfinite().all():
            weight = weight - RATE * gradients.mean(dim=0)
        weights.append(weight)
    return [{"weights": weights}] * case.ranks


def _careful(weight, gradients, rate, *, skip=lambda gradient: False, clean=lambda gradient: gradient):
    weights = []
    for gradient in gradients:
        if not skip(gradient):
            gradient = clean(gradient.clone())
            dist.all_reduce(gradient)
            weight = weight - rate * gradient / dist.get_world_size()
        weights.append(weight)
    return weights


def _agreed(flag, op):
    flag = torch.tensor(int(flag))
    dist.all_reduce(flag, op=op)
    return bool(flag)


def never_looks(weight, gradients, rate):
    """One nan in a gradient, and that weight is nan from then on, on all ranks. Look at the gradient before you use
    it.
    """
    return _careful(weight, gradients, rate)


def stops_training(weight, gradients, rate):
    """You leave the loop at the first bad gradient. The exercise asks for that one update to be skipped, and for its
    weights, unchanged, to be in the list.
    """
    good = 0
    while not _agreed(not gradients[good].isfinite().all(), dist.ReduceOp.MAX):
        good += 1
    return _careful(weight, gradients[:good], rate)


def zeros_instead(weight, gradients, rate):
    """The nan becomes 0 and is averaged in: an update with a made-up gradient. When one rank's gradient is bad, the
    update is skipped, by all.
    """
    return _careful(weight, gradients, rate, clean=lambda gradient: gradient.nan_to_num(0.0, 0.0, 0.0))


def only_if_all_are_bad(weight, gradients, rate):
    """You skip only where *all* ranks have a nan. One is enough to spoil the sum: the question is whether *any* rank
    has one.
    """
    return _careful(weight, gradients, rate, skip=lambda g: _agreed(not g.isfinite().all(), dist.ReduceOp.MIN))


def rank_0_decides(weight, gradients, rate):
    """All ranks do what rank 0 says, so that nothing hangs; but rank 0 has seen only its own gradient. All of them must
    be asked: an all-reduce instead of a broadcast.
    """

    def skip(gradient):
        flag = torch.tensor(int(not gradient.isfinite().all()))
        dist.broadcast(flag, src=0)
        return bool(flag)

    return _careful(weight, gradients, rate, skip=skip)


def looks_for_nan_only(weight, gradients, rate):
    """An infinite gradient is no nan, and makes the weights infinite. Ask for what is good: `isfinite`."""
    return _careful(weight, gradients, rate, skip=lambda gradient: _agreed(gradient.isnan().any(), dist.ReduceOp.MAX))


def decides_alone(weight, gradients, rate):
    """Each rank decides for itself: the one with the nan makes an all-reduce fewer than the others. Its next gradient
    is added to their previous one, and at the end they wait for ever. Decide together, before the branch.
    """
    return _careful(weight, gradients, rate, skip=lambda gradient: not gradient.isfinite().all())


CAREFUL = Exercise(
    number="08.3",
    title="One rank sees a nan",
    answer="careful_updates",
    level="exercise",
    minutes=15,
    parts={"a nan": 1, "a nan on one rank": 2, "an infinite number": 1},
    read="4 · A branch on one rank's numbers",
    hints=(
        "What does the branch depend on? Is that the same on all ranks?",
        "Take a number that is 1 where a rank's gradient is bad and 0 elsewhere. Its maximum over the ranks says if "
        "any is bad, and is the same for all.",
        "Or: what does the *sum* of the gradients look like if one rank's has a nan? All ranks see that sum.",
    ),
    cases=careful_cases,
    drive=drive_careful,
    judge=same_as(right_careful),
    mistakes=(
        never_looks,
        stops_training,
        zeros_instead,
        only_if_all_are_bad,
        rank_0_decides,
        looks_for_nan_only,
    ),
    hanging=decides_alone,
)

EXERCISES = (REPORT, EPOCH, CAREFUL)
