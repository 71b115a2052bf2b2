"""08.1 One rank reports, all evaluate: how an answer is checked, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, differs, seeded
from course_lib.checks.private import by_rank
from course_lib.lessons.lesson_08 import mean_of_all
from course_lib.lessons.symptoms import NO_MEAN_OF_NOTHING, a_mean_of_means, observed, says


def cases(seed: int) -> list[Case]:
    generator, dice = seeded(seed), random.Random(seed)

    def case(part: str, counts: list[list[int]]) -> Case:
        """Make a case in which each rank evaluates `counts[rank][update]` examples."""
        shape = (len(counts), len(counts[0]), 2)
        gradients = torch.randn(shape, generator=generator, dtype=torch.float64)
        totals = torch.rand(shape[:2], generator=generator, dtype=torch.float64) * torch.tensor(counts)
        errors = [list(zip(*row, strict=True)) for row in zip(totals.tolist(), counts, strict=True)]
        updates = shape[1]
        says = f"{updates} update{'s' * (updates > 1)}, evaluated on {counts} examples (a list per rank)"
        return Case(part, len(counts), {"gradients": gradients, "errors": errors}, says)

    def drawn(ranks: int, updates: int) -> list[list[int]]:
        counts = [[dice.choice((0, 1, 2, 30)) for _ in range(updates)] for _ in range(ranks)]
        somebody = dice.randrange(ranks)
        counts[somebody] = [max(1, count) for count in counts[somebody]]
        return counts

    return [
        case("equal shares", [[2], [2]]),
        case("equal shares", [[3, 3, 3], [3, 3, 3]]),
        case("equal shares", [[1] * 5] * 3),
        case("unequal shares", [[1, 1], [5, 5], [2, 2]]),
        case("unequal shares", [[4, 0, 1], [0, 2, 9]]),
        case("unequal shares", [[0, 0], [7, 3]]),
        *(case("unequal shares", drawn(ranks, updates)) for ranks, updates in ((2, 4), (3, 4), (2, 7), (3, 12))),
    ]


def drive(answer, gradients: Tensor, errors: list):
    rank = dist.get_rank()
    return answer(list(gradients[rank].clone()), errors[rank])


def expected(case: Case) -> list:
    sums = list(case.inputs["gradients"].sum(dim=0))
    means = [
        sum(total for total, _ in errors) / sum(count for _, count in errors)
        for errors in zip(*case.inputs["errors"], strict=True)
    ]
    return [{"sums": sums, "reports": means if rank == 0 else []} for rank in range(case.ranks)]


def judge(case: Case, values: list) -> str | None:
    for rank, (value, right) in enumerate(zip(values, expected(case), strict=True)):
        if not _is_pair(value):
            return f"rank {rank}: it should return two lists, the sums and the reports"
        difference = differs({"sums": value[0], "reports": value[1]}, right)
        if difference:
            return f"rank {rank}: {difference}"
    return None


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _sums_are(case: Case, values: list, right: list) -> bool:
    return all(differs(value[0], mine) is None for value, mine in zip(values, right, strict=True))


def _reports_are(case: Case, values: list, right: list) -> bool:
    return differs(values[0][1], right) is None


@observed
def adds_nothing_up(case: Case, values: list) -> bool:
    """These are each rank's own gradients: nothing was summed, or the sum went into a different tensor than the one you
    return.
    """
    return _sums_are(case, values, [list(mine) for mine in case.inputs["gradients"]])


def means_instead_of_sums(case: Case, values: list) -> bool:
    """These are the means of the gradients. The first list should have their sums: leave the division out."""
    return _sums_are(case, values, [list(case.inputs["gradients"].mean(dim=0))] * case.ranks)


@observed
def ranks_disagree(case: Case, values: list) -> bool:
    """The ranks have different sums for the same update. Matching all-reduce calls give the same result on all ranks:
    compare which calls each rank makes, and in which order.
    """
    return any(differs(value[0], values[0][0]) for value in values[1:])


@observed
def everyone_reports(case: Case, values: list) -> bool:
    """Other ranks report as well, so the log has everything once per rank. All *evaluate*; only rank 0 reports."""
    return any(value[1] is not None and len(value[1]) for value in values[1:])


@observed
def reports_no_list(case: Case, values: list) -> bool:
    """A rank that does not report returns an *empty list* of reports."""
    return any(value[1] is None for value in values[1:])


@observed
def too_few_reports(case: Case, values: list) -> bool:
    """Rank 0 has fewer reports than there are updates. Report once after each update."""
    return len(values[0][1]) < len(case.inputs["errors"][0])


def reports_its_own(case: Case, values: list) -> bool:
    """Nothing hangs, but rank 0 reports the mean of its own share only. The other ranks have evaluated, too: add up
    their sums and counts, with all ranks taking part.
    """
    return _reports_are(case, values, [total / max(1, count) for total, count in case.inputs["errors"][0]])


@says(a_mean_of_means("an example", "rank"))
def mean_of_means(case: Case, values: list) -> bool:
    updates = list(zip(*case.inputs["errors"], strict=True))
    means = [[total / max(1, count) for total, count in update] for update in updates]
    present = [sum(count > 0 for _, count in update) for update in updates]
    of_all = [sum(update) / case.ranks for update in means]
    of_those_present = [sum(update) / number for update, number in zip(means, present, strict=True)]
    return _reports_are(case, values, of_all) or _reports_are(case, values, of_those_present)


def reports_the_sum(case: Case, values: list) -> bool:
    """This is the sum of all errors, or of all ranks' mean errors. It grows with their number: divide the sum of the
    errors by the number of examples on all ranks.
    """
    updates = list(zip(*case.inputs["errors"], strict=True))
    sums = [sum(total for total, _ in update) for update in updates]
    sums_of_means = [sum(total / max(1, count) for total, count in update) for update in updates]
    return _reports_are(case, values, sums) or _reports_are(case, values, sums_of_means)


def over_all_updates(case: Case, values: list) -> bool:
    """This is the mean over all updates so far. Each report covers the errors after *one* update."""
    totals, counts, running = 0.0, 0, []
    for update in zip(*case.inputs["errors"], strict=True):
        totals += sum(total for total, _ in update)
        counts += sum(count for _, count in update)
        running.append(totals / counts)
    return _reports_are(case, values, running)


@says(NO_MEAN_OF_NOTHING)
def not_a_number(case: Case, values: list) -> bool:
    empty = any(not count for mine in case.inputs["errors"] for _, count in mine)
    return empty and any(float(report) != float(report) for report in values[0][1])


def evaluates_on_rank_0(gradients, errors):
    """There is a collective under `if rank == 0`: the others never call it, or their next gradient meets it."""
    sums, reports = [], []
    for gradient, error in zip(gradients, errors, strict=True):
        dist.all_reduce(gradient)
        sums.append(gradient)
        if dist.get_rank() == 0:
            reports.append(mean_of_all(*error))
    return sums, reports


EXERCISE = Exercise(
    number="08.1",
    title="One rank reports, all evaluate",
    answer="train_and_report",
    level="warm-up",
    minutes=8,
    parts={"equal shares": 1, "unequal shares": 1},
    read="3 · One rank does more",
    hints=(
        "Which calls in this program are collectives? Which ranks make each of them, and how often?",
        "Evaluating is work for all ranks. Printing is work for one.",
        "Send a sum and a count, `[total, count]`: both can be added up.",
    ),
    cases=cases,
    drive=drive,
    private={"gradients": by_rank, "errors": by_rank},
    judge=judge,
    symptoms=(
        reports_no_list,
        everyone_reports,
        adds_nothing_up,
        means_instead_of_sums,
        ranks_disagree,
        too_few_reports,
        not_a_number,
        reports_its_own,
        mean_of_means,
        reports_the_sum,
        over_all_updates,
    ),
    hanging=evaluates_on_rank_0,
)
