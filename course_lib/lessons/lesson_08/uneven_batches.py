"""08.2 Uneven batches: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
import torch.distributed as dist

from course_lib.checks.exercise import Case, Exercise, differs, same_as, seeded
from course_lib.checks.private import by_rank
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_08 import mean_of_all
from course_lib.lessons.symptoms import NO_MEAN_OF_NOTHING, a_mean_of_means, observed, says

MANY = 1_000  # updates: more than a hard-coded guess would cover


def cases(seed: int) -> list[Case]:
    generator, dice = seeded(seed), random.Random(seed)

    def case(part: str, sizes: list[list[int]], zero: int | None = None) -> Case:
        """Make a case in which each rank has batches of these sizes; all losses of update `zero` are 0."""
        batches = [[torch.rand(size, generator=generator, dtype=torch.float64) for size in rank] for rank in sizes]
        says = f"batches of {sizes} examples" if sum(map(len, sizes)) < 40 else f"{list(map(len, sizes))} batches"
        if zero is not None:
            says += f"; all losses of update {zero}, counted from 0, are 0.0"
            for mine in batches:
                if zero < len(mine):
                    mine[zero].zero_()
        return Case(part, len(sizes), {"batches": batches}, says)

    def drawn(*numbers: int) -> list[list[int]]:
        return [[dice.choice((1, 1, 2, 9)) for _ in range(number)] for number in numbers]

    most = dice.randrange(12, 20)
    return [
        case("equally many", [[2, 2], [2, 2]]),
        case("equally many", drawn(3) * 3),
        case("equally many", drawn(most) * 2),
        case("equally many", drawn(4) * 2, zero=1),
        case("unequally many", [[3, 1], [2], [1, 4, 2, 1, 1]]),  # the shortest is neither the first nor the last ...
        case("unequally many", [[1, 2, 1], [2, 1], [1, 1, 3, 2]]),  # ... and a second case proves what stops the ranks
        case("unequally many", [[2, 2], [2]]),
        case("unequally many", [[2], [1, 3, 2, 1]], zero=2),
        case("unequally many", drawn(1, 4)),
        case("unequally many", drawn(5, 1)),
        case("unequally many", drawn(2, most, 3)),
        case("unequally many", drawn(most + 1, most)),
        case("unequally many", drawn(1, MANY + most)),
        case("a rank without batches", [[], [3, 2]]),
        case("a rank without batches", [[], []]),
        case("a rank without batches", drawn(1, 0)),
        case("a rank without batches", drawn(0, 0, 3)),
        case("a rank without batches", drawn(4, 0, most)),
    ]


def drive(answer, batches: list):
    return {"losses": answer(batches[dist.get_rank()])}


def expected(case: Case) -> list:
    return [{"losses": [examples.mean().item() for examples in _of_each_update(case)]}] * case.ranks


def _of_each_update(case: Case) -> list:
    """Return the examples of all ranks together, for each update."""
    batches = case.inputs["batches"]
    updates = range(max(map(len, batches)))
    return [torch.cat([mine[update] for mine in batches if update < len(mine)]) for update in updates]


def _means(case: Case) -> list[list[float | None]]:
    """Return each rank's own mean in each update, None after the rank has run out."""
    batches = case.inputs["batches"]
    updates = range(max(map(len, batches)))
    return [[mine[update].mean().item() if update < len(mine) else None for mine in batches] for update in updates]


def _losses_are(values: list, right: list) -> bool:
    return all(differs(value["losses"], right) is None for value in values)


def _stops_after(updates: int, others: Sequence[int], case: Case, values: list) -> bool:
    """Return whether all ranks stop after this many updates, which is too few and equal to none of the `others`."""
    few = all(len(value["losses"]) == updates for value in values)
    return few and updates < len(_means(case)) and updates not in others


@observed
def stops_at_a_zero(case: Case, values: list) -> bool:
    """The ranks stop at the first update whose losses add up to 0. A loss can be 0 while
    ranks still have batches: stop when the *count* is 0.
    """
    zero = _first_zero(case)
    return zero is not None and all(len(value["losses"]) == zero for value in values)


@observed
def leaves_zeros_out(case: Case, values: list) -> bool:
    """Updates whose losses add up to 0 are missing from the list. A loss of 0 is still a loss, and belongs there."""
    right = [loss for loss in expected(case)[0]["losses"] if loss]
    return _first_zero(case) is not None and _losses_are(values, right)


def _first_zero(case: Case) -> int | None:
    """Return the first update whose losses are all 0."""
    return next((update for update, losses in enumerate(_of_each_update(case)) if not losses.any()), None)


def stops_at_the_shortest(case: Case, values: list) -> bool:
    """All ranks stop when the first has run out: nothing hangs, but the batches the others have left are never used. Go
    on as long as *any* rank has a batch.
    """
    first, *_, last = lengths = list(map(len, case.inputs["batches"]))
    return _stops_after(min(lengths), [first, last], case, values)


def as_many_as_rank_0(case: Case, values: list) -> bool:
    """All ranks make as many updates as rank 0 has batches. If another rank has more, those are lost. Ask all ranks:
    which all-reduce gives the largest of their numbers?
    """
    first, *_, last = lengths = list(map(len, case.inputs["batches"]))
    return _stops_after(first, [min(lengths), last], case, values)


@observed
def stops_too_early(case: Case, values: list) -> bool:
    """There are fewer losses than updates. This is what you get if the number of updates is a constant, or the number
    of batches on one rank: any rank may have the most, so the ranks have to ask one another.
    """
    return any(len(value["losses"]) < len(_means(case)) for value in values)


@observed
def goes_on_too_long(case: Case, values: list) -> bool:
    """There are more losses than updates: after the last batch of the rank with the most, there is nothing to report.
    The ranks have to agree on the number of updates.
    """
    return any(len(value["losses"]) > len(_means(case)) for value in values)


@says(NO_MEAN_OF_NOTHING)
def not_a_number(case: Case, values: list) -> bool:
    ran_out = any(None in update for update in _means(case))
    return ran_out and any(float(loss) != float(loss) for value in values for loss in value["losses"])


def one_tensor_for_all(case: Case, values: list) -> bool:
    """All losses in the list are the last one: the list holds one tensor many times, and every update changes it in
    place. Append a number, `item()`, or a new tensor.
    """
    right = expected(case)[0]["losses"]
    return len(right) > 1 and _losses_are(values, right[-1:] * len(right))


def one_mean_for_the_epoch(case: Case, values: list) -> bool:
    """Each loss is the mean over all updates so far. Reset the sum and the count in every update: each loss
    belongs to one update only.
    """
    updates = _of_each_update(case)
    so_far = [torch.cat(updates[: place + 1]).mean().item() for place in range(len(updates))]
    return len(updates) > 1 and _losses_are(values, so_far)


@observed
def its_own_losses(case: Case, values: list) -> bool:
    """Each rank returns the losses of its own batches. An update has the examples of all ranks: add them up."""
    own = [[batch.mean().item() for batch in mine] for mine in case.inputs["batches"]]
    return all(differs(value["losses"], mine) is None for value, mine in zip(values, own, strict=True))


def averages_zeros_in(case: Case, values: list) -> bool:
    """A rank that has run out adds a mean of 0, which pulls the loss down, as `join()` does to gradients. It has no
    mean; it has a sum of 0 and a *count* of 0.
    """
    uneven = any(None in update for update in _means(case))
    return uneven and _losses_are(values, [sum(mean or 0.0 for mean in update) / case.ranks for update in _means(case)])


def counts_who_ran_out(case: Case, values: list) -> bool:
    """A rank that has run out adds an example with a loss of 0: the sum is right, but the count is too large. Its count
    should be 0.
    """
    totals = [(examples.sum().item(), len(examples)) for examples in _of_each_update(case)]
    pairs = zip(totals, _means(case), strict=True)
    return _losses_are(values, [total / (count + means.count(None)) for (total, count), means in pairs])


@says(a_mean_of_means("an example", "rank"))
def mean_of_means(case: Case, values: list) -> bool:
    present = [[mean for mean in update if mean is not None] for update in _means(case)]
    return _losses_are(values, [sum(update) / len(update) for update in present])


def repeats_a_batch(case: Case, values: list) -> bool:
    """A rank that has run out uses a batch again, and those examples count twice. An empty share is still a share: a
    sum of 0 and a count of 0.
    """
    batches = case.inputs["batches"]
    updates = range(len(_means(case)))
    places = (lambda update, many: min(update, many - 1), lambda update, many: update % many)
    for place in places:
        again = [torch.cat([mine[place(update, len(mine))] for mine in batches if mine]) for update in updates]
        if _losses_are(values, [examples.mean().item() for examples in again]):
            return True
    return False


def sums_not_means(case: Case, values: list) -> bool:
    """These are the sums of the losses. Divide each by the number of examples on all ranks in that update."""
    return _losses_are(values, [examples.sum().item() for examples in _of_each_update(case)])


def own_batches_only(batches):
    """Each rank makes as many all-reduces as it has batches; the one with the most waits forever in an extra one."""
    return [mean_of_all(batch.sum(), len(batch)) for batch in batches]


EXERCISE = Exercise(
    **texts("08.2"),
    cases=cases,
    drive=drive,
    private={"batches": by_rank},
    judge=same_as(expected),
    symptoms=(
        its_own_losses,
        stops_at_a_zero,
        leaves_zeros_out,
        stops_at_the_shortest,
        as_many_as_rank_0,
        stops_too_early,
        goes_on_too_long,
        not_a_number,
        averages_zeros_in,
        counts_who_ran_out,
        mean_of_means,
        repeats_a_batch,
        sums_not_means,
        one_tensor_for_all,
        one_mean_for_the_epoch,
    ),
    hanging=own_batches_only,
)
