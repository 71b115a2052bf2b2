"""08.1 One rank reports, all evaluate: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.checks.lesson_08 import mean_of_all


def cases(seed: int) -> list[Case]:
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


def drive(answer, gradients: Tensor, errors: list):
    rank = dist.get_rank()
    sums, reports = answer(list(gradients[rank].clone()), errors[rank])
    return {"sums": list(sums), "reports": [float(report) for report in reports]}


def expected(case: Case) -> list:
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
    pairs = [(gradient, mean_of_all(*error)) for gradient, error in zip(_summed(gradients), errors, strict=True)]
    return [gradient for gradient, _ in pairs], [mean for _, mean in pairs]


def reports_the_sum(gradients, errors):
    """You report the sum of all errors. It grows with the number of examples: divide it by the count of all ranks."""
    sums, reports = [], []
    for gradient, (total, _) in zip(_summed(gradients), errors, strict=True):
        sums.append(gradient)
        reports.append(mean_of_all(total, 1 / dist.get_world_size()))
    return sums, reports if dist.get_rank() == 0 else []


def reports_once(gradients, errors):
    """There is one report, after the last update. It was wanted after each of them."""
    sums = list(_summed(gradients))
    mean = mean_of_all(*errors[-1])
    return sums, [mean] if dist.get_rank() == 0 else []


def mean_of_means(gradients, errors):
    """The mean of the ranks' means: an example on a rank with few of them weighs more. Sums and counts travel, and the
    division happens once.
    """
    sums, reports = [], []
    for gradient, (total, count) in zip(_summed(gradients), errors, strict=True):
        sums.append(gradient)
        reports.append(mean_of_all(total / count, 1))
    return sums, reports if dist.get_rank() == 0 else []


def evaluates_on_rank_0(gradients, errors):
    """A collective under `if rank == 0`: the others never call it, or meet it with their next gradient. Put the
    collective outside, where all ranks pass, and leave only the report inside.
    """
    sums, reports = [], []
    for gradient, error in zip(_summed(gradients), errors, strict=True):
        sums.append(gradient)
        if dist.get_rank() == 0:
            reports.append(mean_of_all(*error))
    return sums, reports


EXERCISE = Exercise(
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
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        reports_its_own,
        everyone_reports,
        reports_the_sum,
        reports_once,
        mean_of_means,
    ),
    hanging=evaluates_on_rank_0,
)
