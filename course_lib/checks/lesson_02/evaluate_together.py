"""02.3 Evaluate together: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.checks.exercise import Case, Exercise, same_as, seeded


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, counts: list[int], says: str) -> Case:
        totals = [torch.rand(count, generator=generator, dtype=torch.float64).sum().item() for count in counts]
        return Case(part, len(counts), {"totals": totals, "counts": counts}, says)

    return [
        case("the mean of all examples", [2, 2], "2 examples on each"),
        case("the mean of all examples", [5, 1, 2], "5, 1 and 2 examples"),
        case("a rank without examples", [3, 0], "3 examples on rank 0, none on rank 1"),
    ]


def drive(answer, totals: list[float], counts: list[int]):
    return float(answer(totals[dist.get_rank()], counts[dist.get_rank()]))


def expected(case: Case) -> list[float]:
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


EXERCISE = Exercise(
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
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        own_mean,
        mean_of_means,
        divides_by_its_own_count,
        only_rank_0_knows,
    ),
    hanging=skips_when_empty,
)
