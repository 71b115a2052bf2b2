"""04.2 Clip in the right place: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.checks.lesson_04 import FEATURES, examples, linear, whole


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, sizes: list[list[int]], limit: float) -> Case:
        weight = -torch.rand(1, FEATURES, generator=generator, dtype=torch.float64)
        micro_batches = [[examples(generator, size) for size in rank] for rank in sizes]
        inputs = {"weight": weight, "micro_batches": micro_batches, "limit": limit}
        return Case(part, len(sizes), inputs, f"micro-batches of {sizes} examples, clipped to {limit}")

    return [
        case("the gradient of all", [[2, 2], [2, 2]], 1000.0),
        case("the norm of all", [[2, 2], [2, 2]], 0.5),
        case("the norm of all", [[4, 1], [2, 3], [1, 1]], 0.25),
    ]


def drive(answer, weight: Tensor, micro_batches: list, limit: float):
    model = linear(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    count = sum(len(inputs) for rank in micro_batches for inputs, _ in rank)
    norm = answer(model, optimizer, micro_batches[dist.get_rank()], count, limit)
    return {"norm": float(norm), "weight": model.weight, "bias": model.bias}


def expected(case: Case) -> list:
    model = linear(case.inputs["weight"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs, targets = whole([piece for rank in case.inputs["micro_batches"] for piece in rank])
    (model(inputs) - targets).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), case.inputs["limit"])
    optimizer.step()
    return [{"norm": norm.item(), "weight": model.weight.detach(), "bias": model.bias.detach()}] * case.ranks


def _accumulate(model, micro_batches, count, after_each=lambda: None):
    for inputs, targets in micro_batches:
        ((model(inputs) - targets).square().sum() / count).backward()
        after_each()


def _sum_over_ranks(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def clips_every_piece(model, optimizer, micro_batches, count, limit):
    """You clip after every micro-batch: the later ones are added to what was already cut down, and weigh more. The
    limit is meant for the gradient of the whole batch.
    """

    def clip():
        nn.utils.clip_grad_norm_(model.parameters(), limit)

    _accumulate(model, micro_batches, count, clip)
    _sum_over_ranks(model)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    optimizer.step()
    return norm


def clips_its_own(model, optimizer, micro_batches, count, limit):
    """Each rank clips its own gradient, and then they are added up: ranks are cut down by different factors, and the
    sum may be longer than the limit. First the sum over all ranks, then the norm.
    """
    _accumulate(model, micro_batches, count)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    _sum_over_ranks(model)
    optimizer.step()
    return norm


def averages_once_more(model, optimizer, micro_batches, count, limit):
    """The gradient is too small by the number of ranks: `count` has the examples of all ranks already, so the ranks'
    parts are to be added up, not averaged.
    """
    _accumulate(model, micro_batches, count)
    _sum_over_ranks(model)
    for parameter in model.parameters():
        parameter.grad /= dist.get_world_size()
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm


def keeps_to_itself(model, optimizer, micro_batches, count, limit):
    """Every rank updates with its own gradient: nothing was sent, and the replicas drift apart. Add the gradients up
    over the ranks before you clip.
    """
    _accumulate(model, micro_batches, count)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return norm


def always_scales(model, optimizer, micro_batches, count, limit):
    """A gradient shorter than the limit is stretched to it. Clipping only ever shortens: the factor is at most 1."""
    _accumulate(model, micro_batches, count)
    _sum_over_ranks(model)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    for parameter in model.parameters():
        parameter.grad *= limit / norm
    optimizer.step()
    return norm


def clips_each_parameter(model, optimizer, micro_batches, count, limit):
    """Each parameter is clipped by its own norm, which turns the gradient into another direction. The norm is that of
    all parameters together, and one factor shortens them all.
    """
    _accumulate(model, micro_batches, count)
    _sum_over_ranks(model)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    for parameter in model.parameters():
        nn.utils.clip_grad_norm_([parameter], limit)
    optimizer.step()
    return norm


def clips_too_late(model, optimizer, micro_batches, count, limit):
    """The step is made with the gradient as it was: you clip after it, when nobody looks any more. The order is sum,
    clip, step.
    """
    _accumulate(model, micro_batches, count)
    _sum_over_ranks(model)
    optimizer.step()
    return nn.utils.clip_grad_norm_(model.parameters(), limit)


EXERCISE = Exercise(
    number="04.2",
    title="Clip in the right place",
    answer="clipped_update",
    level="exercise",
    minutes=15,
    parts={"the gradient of all": 1, "the norm of all": 2},
    read="5 · Clipping, the scheduler and the tail",
    hints=(
        "Put these in order: clip, step, backward of every micro-batch, all-reduce. Which of them happen once?",
        "`count` is the same on all ranks. If every micro-batch's sum is divided by it, what has to be done with the "
        "ranks' gradients: a sum or a mean?",
        "`torch.nn.utils.clip_grad_norm_(parameters, limit)` returns the norm that it found.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        clips_every_piece,
        clips_its_own,
        averages_once_more,
        keeps_to_itself,
        always_scales,
        clips_each_parameter,
        clips_too_late,
    ),
)
