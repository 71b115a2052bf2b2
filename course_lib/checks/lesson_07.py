"""Exercises of lesson 07, hybrid parallelism: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded

# 07.1 -----------------------------------------------------------------------------------------------------------------


def table_cases(seed: int) -> list[Case]:
    more = torch.randint(2, (), generator=seeded(seed)).item()

    def case(part: str, replicas: int, stages: int) -> Case:
        return Case(part, 1, {"replicas": replicas, "stages": stages}, f"{replicas} replicas of {stages} stages")

    return [
        case("rows and columns", 2, 3),
        case("rows and columns", 3 + more, 2),
        case("neighbours", 2, 3 + more),
        case("neighbours", 3, 1),
    ]


def drive_table(answer, replicas: int, stages: int):
    return [dict(answer(rank, replicas, stages)) for rank in range(replicas * stages)]


def judge_table(case: Case, values: list) -> str | None:
    names = ["row", "column"] if case.part == "rows and columns" else ["before", "after"]
    for rank, right in enumerate(right_table(**case.inputs)):
        value = values[0][rank]
        for name in names:
            if name not in value or value[name] != right[name]:
                return f"rank {rank}: {name} is {value.get(name)}, it should be {right[name]}"
    return None


def right_table(replicas: int, stages: int) -> list[dict]:
    return [place(rank, rank // stages, rank % stages, replicas, stages) for rank in range(replicas * stages)]


def place(rank: int, replica: int, stage: int, replicas: int, stages: int) -> dict:
    return {
        "row": [replica * stages + other for other in range(stages)],
        "column": [other * stages + stage for other in range(replicas)],
        "before": rank - 1 if stage > 0 else None,
        "after": rank + 1 if stage < stages - 1 else None,
    }


def rows_for_columns(rank, replicas, stages):
    """Row and column are exchanged. A row is one replica, with all its stages; a column is one stage, in all of the
    replicas.
    """
    right = place(rank, rank // stages, rank % stages, replicas, stages)
    return {**right, "row": right["column"], "column": right["row"]}


def column_by_column(rank, replicas, stages):
    """You number the table column by column: the stages of a replica are then far apart, on other nodes, and they talk
    at every micro-batch. Number it row by row: neighbouring ranks are neighbouring stages.
    """
    right = place(rank, rank % replicas, rank // replicas, replicas, stages)
    return {
        **right,
        "row": [stage * replicas + rank % replicas for stage in range(stages)],
        "column": [rank // replicas * replicas + replica for replica in range(replicas)],
    }


def divides_by_the_replicas(rank, replicas, stages):
    """You divide the rank by the number of replicas. A row is as long as there are *stages*: that is the number to
    divide by.
    """
    return place(rank, rank // replicas, rank % replicas, replicas, stages)


def leaves_itself_out(rank, replicas, stages):
    """A group has all its ranks, also the one that asks: without it, the rank could not take part in the sum."""
    right = place(rank, rank // stages, rank % stages, replicas, stages)
    return {**right, **{name: [other for other in right[name] if other != rank] for name in ("row", "column")}}


def into_the_next_row(rank, replicas, stages):
    """The neighbours are taken from the rank alone: the last stage of a replica sends its outputs to the first stage of
    the next one. A replica ends at its row's end.
    """
    right = place(rank, rank // stages, rank % stages, replicas, stages)
    after = rank + 1 if rank + 1 < replicas * stages else None
    return {**right, "before": rank - 1 if rank else None, "after": after}


def round_and_round(rank, replicas, stages):
    """A pipeline is no ring: before the first stage and after the last there is nobody. Return None there."""
    right = place(rank, rank // stages, rank % stages, replicas, stages)
    start, stage = rank - rank % stages, rank % stages
    return {**right, "before": start + (stage - 1) % stages, "after": start + (stage + 1) % stages}


TABLE = Exercise(
    number="07.1",
    title="Rows and columns",
    answer="my_place",
    level="warm-up",
    minutes=10,
    parts={"rows and columns": 2, "neighbours": 1},
    read="1 · A table of ranks",
    hints=(
        "Write the table of 2 replicas and 3 stages on paper, row by row. In which row and column is rank 4?",
        "`divmod(rank, stages)`.",
        "The row of replica r begins at rank r * stages. The column of stage s has every stages-th rank, from s on.",
    ),
    cases=table_cases,
    drive=drive_table,
    judge=judge_table,
    mistakes=(
        rows_for_columns,
        column_by_column,
        divides_by_the_replicas,
        leaves_itself_out,
        into_the_next_row,
        round_and_round,
    ),
)

# 07.2 -----------------------------------------------------------------------------------------------------------------


def sum_cases(seed: int) -> list[Case]:
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


def drive_sum(answer, gradients: list[list[Tensor]], counts: list[int]):
    replica, stage = divmod(dist.get_rank(), len(gradients[0]))
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros_like(gradients[replica][stage]))
    model.weight.grad = gradients[replica][stage]
    answer(model, counts[replica], len(counts))
    return model.weight.grad


def right_sum(case: Case) -> list[Tensor]:
    gradients, counts = case.inputs["gradients"], case.inputs["counts"]
    sums = [sum(column) / sum(counts) for column in zip(*gradients, strict=True)]
    return sums * len(counts)


def columns(replicas: int) -> list[list[int]]:
    stages = dist.get_world_size() // replicas
    return [list(range(stage, dist.get_world_size(), stages)) for stage in range(stages)]


def rows(replicas: int) -> list[list[int]]:
    stages = dist.get_world_size() // replicas
    return [list(range(replica * stages, (replica + 1) * stages)) for replica in range(replicas)]


def own_group(tables: list[list[int]]):
    groups = [(dist.new_group(ranks), ranks) for ranks in tables]
    return next(group for group, ranks in groups if dist.get_rank() in ranks)


def summed(value: Tensor | int, group=None) -> Tensor:
    total = value.clone() if isinstance(value, Tensor) else torch.tensor(value)
    dist.all_reduce(total, group=group)
    return total


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


SUM = Exercise(
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
    cases=sum_cases,
    drive=drive_sum,
    judge=same_as(right_sum),
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

# 07.3 -----------------------------------------------------------------------------------------------------------------


def clip_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, replicas: int, stages: int, share: float, says: str) -> Case:
        gradients = [
            [torch.randn(2, generator=generator, dtype=torch.float64) for _ in range(2)] for _ in range(stages)
        ]
        limit = share * norm_of([gradient for stage in gradients for gradient in stage])
        says = f"{replicas} x {stages} ranks, {says}"
        return Case(part, replicas * stages, {"gradients": gradients, "limit": limit, "replicas": replicas}, says)

    return [
        case("the norm", 2, 2, 0.5, "a norm of twice the limit"),
        case("the norm", 1, 3, 0.5, "a norm of twice the limit"),
        case("no more than needed", 2, 2, 1.2, "a norm just below the limit"),
    ]


def norm_of(gradients: list[Tensor]) -> float:
    return torch.cat(gradients).norm().item()


def drive_clip(answer, gradients: list[list[Tensor]], limit: float, replicas: int):
    stages = len(gradients)
    row = own_group([list(range(r * stages, (r + 1) * stages)) for r in range(replicas)])
    column = own_group([list(range(s, replicas * stages, stages)) for s in range(stages)])
    model = nn.ParameterList(nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(3))
    for parameter, gradient in zip(model, gradients[dist.get_rank() % stages], strict=False):
        parameter.grad = gradient  # the last parameter is frozen, and has none
    norm = answer(model, limit, row, column)
    return {"norm": float(norm), "gradients": [parameter.grad for parameter in model]}


def right_clip(case: Case) -> list[dict]:
    gradients, limit, replicas = case.inputs.values()
    norm = norm_of([gradient for stage in gradients for gradient in stage])
    scale = min(1.0, limit / norm)
    return [
        {"norm": norm, "gradients": [*(scale * gradient for gradient in own), None]} for own in gradients
    ] * replicas


def scaled(model, norm, limit, always=False):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= limit / norm if always else min(1.0, limit / norm)
    return norm


def squares_of(model) -> Tensor:
    return sum(parameter.grad.square().sum() for parameter in model.parameters() if parameter.grad is not None)


def own_norm(model, limit, row, column):
    """Each stage is clipped by its own norm, so that the stages shrink by different factors, and the gradient turns to
    another direction. The norm is that of the whole model: its stages add up their squares.
    """
    return scaled(model, squares_of(model).sqrt(), limit)


def norms_added(model, limit, row, column):
    """You add up the stages' norms. It is their *squares* that add up: take the root once, at the end."""
    return scaled(model, summed(squares_of(model).sqrt(), row), limit)


def squares_without_root(model, limit, row, column):
    """This is the square of the norm: the root is missing."""
    return scaled(model, summed(squares_of(model), row), limit)


def counts_replicas_twice(model, limit, row, column):
    """The squares are added up over all ranks. The replicas hold the same gradient: it counts once, not once for each
    replica. One row has the whole model.
    """
    return scaled(model, summed(squares_of(model)).sqrt(), limit)


def over_the_column(model, limit, row, column):
    """You add up over the column: the same stage, once for each replica. The stages of one replica are in a row."""
    return scaled(model, summed(squares_of(model), column).sqrt(), limit)


def always_to_the_limit(model, limit, row, column):
    """A gradient that is small enough was made larger. Clipping only shrinks: the factor is never above 1."""
    return scaled(model, summed(squares_of(model), row).sqrt(), limit, always=True)


def clips_each_number(model, limit, row, column):
    """You cut off every single number at the limit, which is `clip_grad_value_`: the gradient turns to another
    direction. Clipping by the norm multiplies all numbers by the same factor.
    """
    norm = summed(squares_of(model), row).sqrt()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.clamp_(-limit, limit)
    return norm


CLIP = Exercise(
    number="07.3",
    title="Clip by the norm of the whole",
    answer="clip_by_norm",
    level="exercise",
    minutes=15,
    parts={"the norm": 3, "no more than needed": 1},
    read="1 · A table of ranks",
    hints=(
        "The norm is the root of the sum of the squares of *all* numbers of the gradient. Which of them does this rank "
        "have, and which ranks have the others?",
        "Add up this stage's squares, add up over the stages, take the root. Which group has each stage exactly once?",
        "All gradients are multiplied by the same factor: limit / norm, and never more than 1.",
    ),
    cases=clip_cases,
    drive=drive_clip,
    judge=same_as(right_clip),
    mistakes=(
        own_norm,
        norms_added,
        squares_without_root,
        counts_replicas_twice,
        over_the_column,
        always_to_the_limit,
        clips_each_number,
    ),
)

EXERCISES = (TABLE, SUM, CLIP)
