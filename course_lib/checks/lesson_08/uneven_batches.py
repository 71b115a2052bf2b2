"""08.2 Uneven batches: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.checks.lesson_08 import mean_of_all


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, sizes: list[list[int]]) -> Case:
        batches = [[torch.rand(size, generator=generator, dtype=torch.float64) for size in rank] for rank in sizes]
        return Case(part, len(sizes), {"batches": batches}, f"batches of {sizes} examples")

    return [
        case("equally many", [[2, 2], [2, 2]]),
        case("unequally many", [[3, 1], [2], [1, 4, 2]]),
        case("a rank without batches", [[], [3, 2]]),
    ]


def drive(answer, batches: list):
    return {"losses": [float(loss) for loss in answer(batches[dist.get_rank()])]}


def expected(case: Case) -> list:
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
    return [mean_of_all(batches[update].sum(), len(batches[update])) for update in range(updates)]


def as_many_as_rank_0(batches):
    """All ranks make as many updates as rank 0 has batches. Another one may have more, and these are lost. All ranks
    must be asked: which all-reduce gives the largest of their numbers?
    """
    updates = torch.tensor(len(batches))
    dist.broadcast(updates, src=0)
    mine = (_batch(batches, update) for update in range(int(updates)))
    return [mean_of_all(batch.sum(), len(batch)) for batch in mine]


def repeats_its_last(batches):
    """A rank that has run out gives its last batch again, and those examples count twice. An empty share is a share: a
    sum of 0 and a count of 0.
    """
    mine = ((batches or [torch.empty(0)])[min(update, len(batches) - 1)] for update in range(_updates(batches)))
    return [mean_of_all(batch.sum(), len(batch)) for batch in mine]


def averages_zeros_in(batches):
    """A rank that has run out adds a mean of 0, which pulls the loss down, as `join()` does to gradients. It has no
    mean; it has a sum of 0 and a *count* of 0.
    """
    mine = (_batch(batches, update) for update in range(_updates(batches)))
    return [mean_of_all(batch.sum() / max(1, len(batch)), 1) for batch in mine]


def mean_of_those_present(batches):
    """The mean of the means of those ranks that still have a batch: an example in a small batch weighs more than one
    in a large batch. Add up sums and counts.
    """
    mine = (_batch(batches, update) for update in range(_updates(batches)))
    return [mean_of_all(batch.sum() / max(1, len(batch)), float(len(batch) > 0)) for batch in mine]


def own_batches_only(batches):
    """Each rank makes as many all-reduces as it has batches, and the one with the most waits for ever in the next. The
    number of updates must be agreed on before the first, and a rank without a batch takes part with nothing.
    """
    return [mean_of_all(batch.sum(), len(batch)) for batch in batches]


EXERCISE = Exercise(
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
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        stops_at_the_shortest,
        as_many_as_rank_0,
        repeats_its_last,
        averages_zeros_in,
        mean_of_those_present,
    ),
    hanging=own_batches_only,
)
