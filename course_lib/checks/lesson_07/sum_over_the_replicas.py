"""07.2 Sum over the replicas: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.checks.lesson_07 import own_group, summed


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, widths: list[int], counts: list[int], says: str) -> Case:
        gradients = [
            [torch.randn(width, generator=generator, dtype=torch.float64) * min(count, 1) for width in widths]
            for count in counts
        ]
        says = f"{len(counts)} replicas of {len(widths)} stages, {says}"
        return Case(part, len(widths) * len(counts), {"gradients": gradients, "counts": counts}, says)

    return [
        case("the right ranks", [2, 2], [3, 3], "3 tokens in each replica"),
        case("the right ranks", [2, 3], [4, 4], "4 tokens in each, and stages of another size"),
        case("the right count", [2, 2], [5, 1], "5 tokens and 1 token"),
        case("a replica without tokens", [2, 2], [3, 0], "3 tokens, and none in replica 1"),
    ]


def drive(answer, gradients: list[list[Tensor]], counts: list[int]):
    replica, stage = divmod(dist.get_rank(), len(gradients[0]))
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros_like(gradients[replica][stage]))
    model.weight.grad = gradients[replica][stage]
    answer(model, counts[replica], len(counts))
    return {"weight.grad": model.weight.grad}


def expected(case: Case) -> list[dict]:
    gradients, counts = case.inputs["gradients"], case.inputs["counts"]
    sums = [sum(column) / sum(counts) for column in zip(*gradients, strict=True)]
    return [{"weight.grad": gradient} for gradient in sums] * len(counts)


def columns(replicas: int) -> list[list[int]]:
    stages = dist.get_world_size() // replicas
    return [list(range(stage, dist.get_world_size(), stages)) for stage in range(stages)]


def rows(replicas: int) -> list[list[int]]:
    stages = dist.get_world_size() // replicas
    return [list(range(replica * stages, (replica + 1) * stages)) for replica in range(replicas)]


def over_everyone(model, count, replicas):
    """You add up over all ranks, also those of other stages, whose gradients belong to other weights. Where the shapes
    are equal, nobody notices. Add up over the ranks that hold the *same stage*: the column.
    """
    model.weight.grad = summed(model.weight.grad) / summed(count, own_group(columns(replicas)))


def along_the_row(model, count, replicas):
    """You add up over the stages of your own replica: gradients of different weights. The same stage of the other
    replicas is in the same *column*.
    """
    group = own_group(rows(replicas))
    model.weight.grad = summed(model.weight.grad, group) / summed(count, own_group(columns(replicas)))


def counts_every_stage(model, count, replicas):
    """Your count is too large: every stage of a replica knows the replica's count, and you have added it up once for
    each stage. Add it up over the replicas alone.
    """
    model.weight.grad = summed(model.weight.grad, own_group(columns(replicas))) / summed(count)


def means_of_replicas(model, count, replicas):
    """You average the replicas' means, as DDP does: a token in a replica with few of them weighs more than in one with
    many. Add up the gradients, add up the counts, and divide once.
    """
    group = own_group(columns(replicas))
    model.weight.grad = summed(model.weight.grad / max(count, 1), group) / replicas


def divides_by_its_own_count(model, count, replicas):
    """The gradients are added up over the replicas, and then divided by this replica's count alone. The count must be
    added up over them, too.
    """
    group = own_group(columns(replicas))
    model.weight.grad = summed(model.weight.grad, group) / max(count, 1)


def never_divides(model, count, replicas):
    """This is the gradient of the *sum* of the losses. The loss is their mean over the tokens of all replicas: divide
    by how many there are.
    """
    model.weight.grad = summed(model.weight.grad, own_group(columns(replicas)))


def leaves_when_empty(model, count, replicas):
    """A replica that has no tokens leaves without calling the all-reduce, and the others wait for it for ever. Its
    zeros are as welcome as any number.
    """
    group = own_group(columns(replicas))
    if count:
        model.weight.grad = summed(model.weight.grad, group) / summed(count, group)


EXERCISE = Exercise(
    number="07.2",
    title="Sum over the replicas",
    answer="sum_over_replicas",
    level="exercise",
    minutes=20,
    parts={"the right ranks": 2, "the right count": 2, "a replica without tokens": 1},
    read="2 · The same as one process",
    hints=(
        "Which ranks have gradients of the same weights as this one? 07.1 has the answer.",
        "`dist.new_group(ranks)` makes a group, and *every* rank must call it for *every* group, in the same order, "
        "also for those that it is not in.",
        "`dist.all_reduce(tensor, group=group)` adds up within a group. Two things must be added up: the gradients of "
        "sums, and the counts.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        over_everyone,
        along_the_row,
        counts_every_stage,
        means_of_replicas,
        divides_by_its_own_count,
        never_divides,
    ),
    hanging=leaves_when_empty,
)
