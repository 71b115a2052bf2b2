"""02.3 Evaluate together: the check, and the wrong answers it recognizes."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist

from course_lib.checks.exercise import Case, Exercise, differs, draw, same_as, seeded
from course_lib.checks.private import by_rank
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import a_mean_of_means, observed, says


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, counts: list[int], says: str = "", lossless: int | None = None) -> Case:
        totals = [torch.rand(count, generator=generator, dtype=torch.float64).sum().item() for count in counts]
        totals = [0.0 if rank == lossless else total for rank, total in enumerate(totals)]
        says = says or f"{', '.join(map(str, counts[:-1]))} and {counts[-1]} examples"
        return Case(part, len(counts), {"totals": totals, "counts": counts}, says)

    def uneven(chance: random.Random) -> list[int]:
        return [chance.choice((1, 2, 7, 40, 1000)) for _ in range(chance.choice((2, 3)))]

    def gaps(chance: random.Random) -> list[int]:
        return [chance.choice((0, 0, 1, 3, 20)) for _ in range(chance.choice((2, 3)))]

    return [
        case("the mean of all examples", [3, 3], "3 examples on each rank"),
        case("the mean of all examples", [5, 1, 2]),
        case("the mean of all examples", [3, 2], "3 and 2 examples; every loss on rank 1 is 0", lossless=1),
        *(case("the mean of all examples", counts) for counts in draw(uneven, 6, seed)),
        case("a rank without examples", [3, 0], "3 examples on rank 0, none on rank 1"),
        case("a rank without examples", [0, 3], "none on rank 0, 3 examples on rank 1"),
        case("a rank without examples", [0, 4, 0], "4 examples on rank 1, none on the others"),
        case("a rank without examples", [0, 0, 1], "1 example on rank 2, none on the others"),
        *(case("a rank without examples", counts) for counts in draw(gaps, 6, seed) if sum(counts) and 0 in counts),
    ]


def drive(answer, totals: list[float], counts: list[int]):
    return answer(totals[dist.get_rank()], counts[dist.get_rank()])


def expected(case: Case) -> list[float]:
    return [sum(case.inputs["totals"]) / sum(case.inputs["counts"])] * case.ranks


def _same(values: list[Any], others: list[float]) -> bool:
    return differs(values, others) is None


def _own_means(case: Case) -> list[float]:
    return [total / max(count, 1) for total, count in zip(case.inputs["totals"], case.inputs["counts"], strict=True)]


def _several_have_examples(case: Case) -> bool:
    """Return whether more than one rank has examples: otherwise, one rank's own mean is the right one."""
    return sum(map(bool, case.inputs["counts"])) > 1


@says(a_mean_of_means("an example", "rank"))
def mean_of_means(case: Case, values: list[Any]) -> bool:
    means, filled = _own_means(case), sum(map(bool, case.inputs["counts"]))
    return any(_same(values, [sum(means) / ranks] * case.ranks) for ranks in (case.ranks, filled))


def own_mean(case: Case, values: list[Any]) -> bool:
    """Every rank returns the mean of its own examples. The ranks' sums and counts must be added up first:
    `dist.all_reduce`.
    """
    return _several_have_examples(case) and all(
        differs(value, mean) is None
        for value, mean, count in zip(values, _own_means(case), case.inputs["counts"], strict=True)
        if count
    )


def the_sum(case: Case, values: list[Any]) -> bool:
    """This is the sum of all losses, but the exercise asks for the mean: divide by the number of examples on
    all ranks.
    """
    return _same(values, [sum(case.inputs["totals"])] * case.ranks)


def divides_by_the_ranks(case: Case, values: list[Any]) -> bool:
    """You divide the sum of all losses by the number of ranks. It is a mean over *examples*: add up the counts of all
    ranks and divide by their sum.
    """
    return _same(values, [sum(case.inputs["totals"]) / case.ranks] * case.ranks)


def divides_by_its_own_count(case: Case, values: list[Any]) -> bool | None:
    """You add up the losses of all ranks, but divide by a count that only this rank knows. Add up the counts, too."""
    whole, counts = sum(case.inputs["totals"]), case.inputs["counts"]
    filled = [(value, count) for value, count in zip(values, counts, strict=True) if count]
    factors = (1, case.ranks)
    if len({count for _, count in filled}) == 1:
        return None  # if all counts are equal, it could be any rank's
    return any(all(differs(value, whole / (factor * count)) is None for value, count in filled) for factor in factors)


def divides_by_one_count(case: Case, values: list[Any]) -> bool | None:
    """You divide the sum of all losses by the count of a single rank, the same one everywhere (perhaps the largest).
    The loss is a mean over the examples of all ranks: add up their counts.
    """
    whole, counts = sum(case.inputs["totals"]), {count for count in case.inputs["counts"] if count}
    return any(_same(values, [whole / count] * case.ranks) for count in counts) if len(counts) > 1 else None


def divided_once_more(case: Case, values: list[Any]) -> bool:
    """This is the mean of all examples, divided by the number of ranks once more. The sum over the ranks, divided by
    the count over the ranks, is already the mean.
    """
    return _same(values, [mean / case.ranks for mean in expected(case)])


def forgets_a_count(case: Case, values: list[Any]) -> bool:
    """A rank whose losses add up to 0 is left out, and its examples are not counted. A loss of 0 is a loss: only the
    count shows whether a rank has examples.
    """
    totals, counts = case.inputs["totals"], case.inputs["counts"]
    counted = [count for total, count in zip(totals, counts, strict=True) if total]
    return 0 < sum(counted) < sum(counts) and _same(values, [sum(totals) / sum(counted)] * case.ranks)


def own_sum_by_all(case: Case, values: list[Any]) -> bool:
    """The count is that of all ranks, but the sum is this rank's own. Add up the losses, too."""
    totals, count = case.inputs["totals"], sum(case.inputs["counts"])
    return _several_have_examples(case) and _same(values, [total / count for total in totals])


def only_one_knows(case: Case, values: list[Any]) -> bool:
    """One rank has the mean of all examples and the others don't. Every rank needs it, or one will stop training early
    and the others won't: `dist.all_reduce` leaves the sum on all ranks, `dist.reduce` on one.
    """
    return sum(_knows(case, values)) == 1 and not empty_ones_do_not_know(case, values)


def empty_ones_do_not_know(case: Case, values: list[Any]) -> bool:
    """The ranks that have examples return the mean; those without do not. Every rank needs it, or some will stop
    training and others won't: a rank without examples adds zeros, and returns the same result as the others.
    """
    counts = case.inputs["counts"]
    return 0 in counts and _knows(case, values) == [count > 0 for count in counts]


def _knows(case: Case, values: list[Any]) -> list[bool]:
    return [differs(value, right) is None for value, right in zip(values, expected(case), strict=True)]


def counts_an_example_too_many(case: Case, values: list[Any]) -> bool:
    """The sum is divided by too large a count: each rank without examples counts as one example. Divide by the sum of
    the true counts: over all ranks, it is never 0.
    """
    counts = case.inputs["counts"]
    too_many = sum(max(count, 1) for count in counts)
    return 0 in counts and _same(values, [sum(case.inputs["totals"]) / too_many] * case.ranks)


def whole_numbers(case: Case, values: list[Any]) -> bool:
    """The losses were cut to whole numbers on the way, by `int` or by an integer tensor. Send the sum and the count in
    a floating-point tensor.
    """
    totals, count = case.inputs["totals"], sum(case.inputs["counts"])
    return any(_same(values, [sum(map(cut, totals)) / count] * case.ranks) for cut in (int, round))


@observed
def nothing_returned(case: Case, values: list[Any]) -> bool:
    """Your function returns nothing. It must return the mean, on every rank."""
    return all(value is None for value in values)


def skips_when_empty(total, count):
    """A rank without examples returns without calling the collective, and the others wait for it forever. Every rank
    must call every collective, with zeros if need be.
    """
    if count == 0:
        return 0.0
    both = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(both)
    return both[0] / both[1]


EXERCISE = Exercise(
    **texts("02.3"),
    cases=cases,
    drive=drive,
    private={"totals": by_rank, "counts": by_rank},
    judge=same_as(expected, name="the mean"),
    symptoms=(
        nothing_returned,
        own_mean,
        mean_of_means,
        the_sum,
        divided_once_more,
        forgets_a_count,
        divides_by_the_ranks,
        divides_by_its_own_count,
        divides_by_one_count,
        own_sum_by_all,
        whole_numbers,
        counts_an_example_too_many,
        empty_ones_do_not_know,
        only_one_knows,
    ),
    hanging=skips_when_empty,
)
