"""07.3 Clip by the norm of the whole: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.checks.lesson_07 import own_group, summed


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, replicas: int, stages: int, share: float, says: str) -> Case:
        gradients = [
            [torch.randn(2, generator=generator, dtype=torch.float64) for _ in range(2)] for _ in range(stages)
        ]
        limit = share * norm_of([gradient for stage in gradients for gradient in stage])
        says = f"a mesh of {replicas} x {stages}, {says}"
        return Case(part, replicas * stages, {"gradients": gradients, "limit": limit, "replicas": replicas}, says)

    return [
        case("the norm", 2, 2, 0.5, "a norm of twice the limit"),
        case("the norm", 1, 3, 0.5, "a norm of twice the limit"),
        case("no more than needed", 2, 2, 1.2, "a norm just below the limit"),
    ]


def norm_of(gradients: list[Tensor]) -> float:
    return torch.cat(gradients).norm().item()


def drive(answer, gradients: list[list[Tensor]], limit: float, replicas: int):
    stages = len(gradients)
    row = own_group([list(range(r * stages, (r + 1) * stages)) for r in range(replicas)])
    column = own_group([list(range(s, replicas * stages, stages)) for s in range(stages)])
    model = nn.ParameterList(nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(3))
    for parameter, gradient in zip(model, gradients[dist.get_rank() % stages], strict=False):
        parameter.grad = gradient  # the last parameter is frozen, and has none
    norm = answer(model, limit, row, column)
    return {"norm": float(norm), "gradients": [parameter.grad for parameter in model]}


def expected(case: Case) -> list[dict]:
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
    squares = (parameter.grad.square().sum() for parameter in model.parameters() if parameter.grad is not None)
    return sum(squares, start=torch.zeros(()))


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


EXERCISE = Exercise(
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
    cases=cases,
    drive=drive,
    judge=same_as(expected),
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
