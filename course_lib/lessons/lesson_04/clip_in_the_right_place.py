"""04.2 Clip in the right place: the check, and the wrong answers it recognizes."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, differs, draw, same_as, seeded
from course_lib.checks.private import by_rank
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_04 import FEATURES, examples, linear, whole
from course_lib.lessons.symptoms import CLIPPED_EACH_NUMBER, STRETCHED, observed, says

RATE = 0.5
ALL, NORM = "the gradient of all", "the norm of all"


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, sizes: list[list[int]], limit: float) -> Case:
        weight = -torch.rand(1, FEATURES, generator=generator, dtype=torch.float64)
        micro_batches = [[examples(generator, size) for size in rank] for rank in sizes]
        inputs = {"weight": weight, "micro_batches": micro_batches, "limit": limit}
        return Case(part, len(sizes), inputs, f"micro-batches of {sizes} examples, clipped to {limit}")

    return [
        case(ALL, [[2, 2], [2, 2]], 1000.0),
        case(ALL, [[2, 2, 1], [3]], 1000.0),
        case(NORM, [[2, 2], [2, 2]], 0.5),
        case(NORM, [[4, 1], [2, 3], [1, 1]], 0.25),
        *(case(NORM, *drawn) for drawn in draw(shares_from, 8, seed)),
    ]


def shares_from(chance: random.Random) -> tuple[list[list[int]], float]:
    ranks = chance.choice([2, 3])
    shares = [[chance.randint(1, 4) for _ in range(chance.randint(1, 3))] for _ in range(ranks)]
    return shares, chance.choice([0.1, 1.0, 4.0, 1000.0])


def drive(answer, weight: Tensor, micro_batches: list, limit: float):
    model = linear(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    count = sum(len(inputs) for rank in micro_batches for inputs, _ in rank)
    norm = answer(model, optimizer, micro_batches[dist.get_rank()], count, limit)
    return {
        "norm": None if norm is None else torch.as_tensor(norm).detach().item(),
        "weight": model.weight,
        "bias": model.bias,
    }


def judge(case: Case, values: list) -> str | None:
    """Compare the weights and the norm. In the part where the limit changes nothing, compare only the weights:
    otherwise, an answer with the wrong gradient would seem to have only the wrong norm.
    """
    names = ("weight", "bias") if case.part == ALL else ("norm", "weight", "bias")
    right, found = ([{name: each[name] for name in names} for each in of] for of in (expected(case), values))
    return same_as(lambda _: right)(case, found)


def expected(case: Case) -> list:
    gradient = gradient_of(case, [piece for rank in case.inputs["micro_batches"] for piece in rank])
    return [_after(case, clipped(gradient, case.inputs["limit"]), gradient.norm().item())] * case.ranks


def gradient_of(case: Case, pieces: list, count: int | None = None) -> Tensor:
    """Return the gradient (weight, then bias) of these pieces' squared errors, divided by the number of all
    examples.
    """
    model = linear(case.inputs["weight"])
    inputs, targets = whole(pieces)
    total = (model(inputs) - targets).square().sum()
    examples = sum(len(inputs) for rank in case.inputs["micro_batches"] for inputs, _ in rank)
    gradients = torch.autograd.grad(total / (count or examples), list(model.parameters()))
    return torch.cat([part.flatten() for part in gradients])


def clipped(gradient: Tensor, limit: float) -> Tensor:
    return gradient * min(1.0, limit / gradient.norm().item())


def _after(case: Case, gradient: Tensor, norm: float) -> dict:
    """Return what `drive` returns for an answer that steps with this gradient."""
    return {
        "norm": norm,
        "weight": case.inputs["weight"] - RATE * gradient[:FEATURES].view(1, -1),
        "bias": -RATE * gradient[FEATURES:],
    }


def _steps(case: Case, values: list) -> list[Tensor]:
    """Return the gradient that each rank stepped with."""
    moved = (torch.cat([(v["weight"] - case.inputs["weight"]).flatten(), v["bias"].flatten()]) for v in values)
    return [-each / RATE for each in moved]


def _stepped_with(case: Case, values: list, gradient: Tensor) -> bool:
    return all(differs(step, gradient) is None for step in _steps(case, values))


def _wrongly_stepped_with(case: Case, values: list, gradient: Tensor) -> bool:
    right = clipped(_whole(case), case.inputs["limit"])
    return differs(gradient, right) is not None and _stepped_with(case, values, gradient)


def _whole(case: Case) -> Tensor:
    return gradient_of(case, [piece for rank in case.inputs["micro_batches"] for piece in rank])


def has_kept_to_itself(case: Case, values: list) -> bool:
    """Every rank updates with its own gradient: nothing was sent, and the replicas drift apart. Add the gradients up
    over the ranks before you clip.
    """
    own = list(zip(_steps(case, values), case.inputs["micro_batches"], strict=True))

    def like(count_of: Callable[[list], int | None], limit: float) -> bool:
        return all(
            differs(step, clipped(gradient_of(case, pieces, count_of(pieces)), limit)) is None for step, pieces in own
        )

    counts: tuple[Callable[[list], int | None], ...] = (lambda _: None, lambda pieces: len(whole(pieces)[0]))
    return any(like(count, limit) for count in counts for limit in (case.inputs["limit"], float("inf")))


@observed
def has_drifted_apart(case: Case, values: list) -> bool:
    """The ranks step with different gradients, so their weights drift apart, and they train different models from then
    on. After the sum over the ranks, every rank must have the same gradient, for *every* parameter, and multiply it by
    the same factor.
    """
    return any(differs(step, _steps(case, values)[0]) for step in _steps(case, values))


def has_averaged_once_more(case: Case, values: list) -> bool:
    """The gradient is too small by a factor of the number of ranks: `count` already includes the examples of all ranks,
    so add up the ranks' parts instead of averaging them.
    """
    mean = _whole(case) / case.ranks
    return _is_norm(values, mean.norm()) or _stepped_with(case, values, mean)


def has_clipped_pieces(case: Case, values: list) -> bool:
    """You clip after every micro-batch: the later ones are added to what was already clipped, and weigh more. The limit
    applies to the gradient of the whole batch.
    """
    limit, total = case.inputs["limit"], torch.zeros(FEATURES + 1, dtype=torch.float64)
    if case.ranks * max(map(len, case.inputs["micro_batches"])) == case.ranks:
        return False
    for pieces in case.inputs["micro_batches"]:
        own = torch.zeros_like(total)
        for piece in pieces:
            own = clipped(own + gradient_of(case, [piece]), limit)
        total += own
    return _is_sum_of_clipped(case, values, total)


def has_clipped_its_own(case: Case, values: list) -> bool:
    """Each rank clips its own gradient, and then they are added up: ranks are scaled by different factors, and the sum
    may exceed the limit. Sum over all ranks first, then take the norm.
    """
    own = [clipped(gradient_of(case, pieces), case.inputs["limit"]) for pieces in case.inputs["micro_batches"]]
    return _is_sum_of_clipped(case, values, torch.stack(own).sum(dim=0))


def _is_sum_of_clipped(case: Case, values: list, total: Tensor) -> bool:
    """Return whether an answer stepped with the sum of clipped gradients, possibly clipped again."""
    again = clipped(total, case.inputs["limit"])
    return any(_wrongly_stepped_with(case, values, step) for step in (total, again))


def has_clipped_each_parameter(case: Case, values: list) -> bool:
    """Each parameter is clipped by its own norm, which changes the direction of the gradient. Take the norm of all
    parameters together: one factor shortens them all.
    """
    gradient, limit = _whole(case), case.inputs["limit"]
    parts = [clipped(part, limit) for part in (gradient[:FEATURES], gradient[FEATURES:])]
    return _wrongly_stepped_with(case, values, torch.cat(parts))


@says(CLIPPED_EACH_NUMBER)
def has_clipped_numbers(case: Case, values: list) -> bool:
    limit = case.inputs["limit"]
    return _wrongly_stepped_with(case, values, _whole(case).clamp(-limit, limit))


def has_not_clipped(case: Case, values: list) -> bool:
    """The step is made with the gradient as it was: it is not clipped at all, or only after the step, which is too
    late. The order is sum, clip, step.
    """
    return bool(_whole(case).norm() > case.inputs["limit"]) and _stepped_with(case, values, _whole(case))


@says(STRETCHED)
def has_stretched(case: Case, values: list) -> bool:
    limit, gradient = case.inputs["limit"], _whole(case)
    return bool(gradient.norm() < limit) and _stepped_with(case, values, gradient * limit / gradient.norm())


def has_taken_another_kind_of_norm(case: Case, values: list) -> bool:
    """This is a different norm: the largest absolute value of the gradient, the sum of the absolute values, or the sum
    of the squares without the square root. Clip by the square root of the sum of the squares of all its numbers, and
    return that.
    """
    sizes = _whole(case).abs()
    other = any(_is_norm(values, each) for each in (sizes.max(), sizes.sum(), sizes.square().sum()))
    return other and not _is_norm(values, sizes.norm())


def has_returned_another_norm(case: Case, values: list) -> bool:
    """The weights are right. Return the norm of the whole gradient *before* clipping: the square root of the sum of the
    squares of all its numbers.
    """
    limit, gradient = case.inputs["limit"], _whole(case)
    bites = bool(gradient.norm() > limit)  # otherwise, any norm leaves the weights right
    return bites and _stepped_with(case, values, clipped(gradient, limit))


def has_added_norms(case: Case, values: list) -> bool:
    """You compute the norm of the sum from the norms of the parts. That doesn't work: parts may point in different
    directions. Add the gradients up first.
    """
    norms = torch.stack([gradient_of(case, pieces).norm() for pieces in case.inputs["micro_batches"]])
    made: list[Callable[[Tensor], Tensor]] = [torch.sum, torch.mean, torch.linalg.vector_norm, torch.max]
    return any(_is_norm(values, make(norms)) for make in made)


def has_weighed_by_pieces(case: Case, values: list) -> bool:
    """You take the mean of every micro-batch, or of every rank: the weight of an example then depends on how many there
    are in its micro-batch, or on its rank. Divide each sum by `count`.
    """
    shares = case.inputs["micro_batches"]
    pieces = [[gradient_of(case, [piece], len(piece[0])) for piece in share] for share in shares]
    means = [torch.stack(own).mean(dim=0) for own in pieces]
    of_all = torch.stack([gradient for own in pieces for gradient in own]).mean(dim=0)
    ranks = torch.stack([gradient_of(case, share, len(whole(share)[0])) for share in shares])
    wrong = torch.stack(means).sum(dim=0), torch.stack(means).mean(dim=0), of_all, ranks.mean(dim=0), ranks.sum(dim=0)
    right = _whole(case).norm()
    return any(differs(each.norm(), right) is not None and _is_norm(values, each.norm()) for each in wrong)


def _is_norm(values: list, norm: Tensor) -> bool:
    return all(differs(value["norm"], norm.item()) is None for value in values)


def sends_with_every_piece(model, optimizer, micro_batches, count, limit):
    """Every micro-batch's gradient is sent, but ranks may have different numbers of micro-batches."""
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for inputs, targets in micro_batches:
        loss = (model(inputs) - targets).square().sum() / count
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            dist.all_reduce(gradient)
            parameter.grad += gradient
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
    optimizer.step()
    return norm


EXERCISE = Exercise(
    **texts("04.2"),
    cases=cases,
    drive=drive,
    private={"micro_batches": by_rank},
    modules=("torch._dynamo",),
    judge=judge,
    symptoms=(
        has_kept_to_itself,
        has_drifted_apart,
        has_averaged_once_more,
        has_stretched,
        has_clipped_its_own,
        has_clipped_pieces,
        has_clipped_each_parameter,
        has_clipped_numbers,
        has_not_clipped,
        has_weighed_by_pieces,
        has_added_norms,
        has_taken_another_kind_of_norm,
        has_returned_another_norm,
    ),
    hanging=sends_with_every_piece,
)
