"""02.1 Average the gradients by hand: the check, and the wrong answers it recognizes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, differs, same_as, seeded
from course_lib.checks.private import by_rank
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_02 import nested
from course_lib.lessons.symptoms import DIVIDED_TWICE, THE_SUM, observed, says


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, shapes: dict[str, list[int]], unused: tuple[str, ...], says: str) -> Case:
        gradients = [
            {name: _random(shape, generator) for name, shape in shapes.items() if name not in unused}
            for _ in range(ranks)
        ]
        parameters = {name: _random(shape, generator) for name, shape in shapes.items()}
        return Case(part, ranks, {"parameters": parameters, "gradients": gradients}, says)

    layer = {"weight": [3, 2], "bias": [3]}
    deep = {f"{number}.{name}": shape for number in range(3) for name, shape in layer.items()}
    wide = {"first": [2]} | layer | {"last": []}
    still = case("the mean", 2, layer, (), "a weight and a bias, whose gradients are zeros on rank 1")
    still.inputs["gradients"][1] = {name: torch.zeros_like(each) for name, each in still.inputs["gradients"][1].items()}
    return [
        case("the mean", 2, {"weight": [2]}, (), "one parameter of two numbers"),
        still,
        case("the mean", 3, {"scale": []} | layer, (), "three parameters, one of them a single number"),
        case("the mean", 3, deep, (), "six parameters"),
        case("unused parameters", 2, wide, ("first",), "a parameter that has no gradient, before three that have"),
        case("unused parameters", 2, wide, ("last",), "a parameter that has no gradient, after three that have"),
        case(
            "unused parameters", 3, deep, ("0.bias", "1.weight", "2.bias"), "three of six parameters have no gradient"
        ),
    ]


def _random(shape: list[int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def drive(answer, parameters: dict[str, Tensor], gradients: list[dict[str, Tensor]]):
    model = nested(parameters)
    for name, gradient in gradients[dist.get_rank()].items():
        model.get_parameter(name).grad = gradient.clone()
    answer(model)
    return {
        "gradients": {name: parameter.grad for name, parameter in model.named_parameters()},
        "parameters": {name: parameter.detach() for name, parameter in model.named_parameters()},
    }


def expected(case: Case) -> list:
    gradients, means = case.inputs["gradients"], _means(case)
    parameters = case.inputs["parameters"]
    right = {"gradients": {name: means.get(name) for name in parameters}, "parameters": parameters}
    return [right] * len(gradients)


def _means(case: Case) -> dict[str, Tensor]:
    gradients = case.inputs["gradients"]
    return {name: torch.stack([each[name] for each in gradients]).mean(0) for name in gradients[0]}


def _all_are(values: list, right: list[dict[str, Tensor]]) -> bool:
    """Return whether every rank has the gradients that it has in `right`."""
    found = [{name: value["gradients"][name] for name in right[rank]} for rank, value in enumerate(values)]
    return differs(found, right) is None


def _scaled(case: Case, factor: float) -> list[dict[str, Tensor]]:
    return [{name: factor * mean for name, mean in _means(case).items()}] * case.ranks


@observed
def made_the_update(case: Case, values: list[Any]) -> bool:
    """You have changed the parameters themselves, though the gradients are right. The update is the optimizer's job:
    leave the parameters as they are.
    """
    changed = any(differs(value["parameters"], case.inputs["parameters"]) for value in values)
    return changed and _all_are(values, _scaled(case, 1))


@observed
def changed_the_parameters(case: Case, values: list[Any]) -> bool:
    """You have changed the parameters themselves. They are already equal on all ranks: `parameter.grad` is what
    differs, and what the ranks must agree on.
    """
    return any(differs(value["parameters"], case.inputs["parameters"]) for value in values)


@says(THE_SUM)
def the_sum(case: Case, values: list[Any]) -> bool | None:
    if not _all_are(values, _scaled(case, case.ranks)):
        return False
    several = len(_means(case)) > 1  # a single gradient divided by the number of gradients is also the sum
    return True if several and not _ranks_of_zeros(case) else None


@observed
def leaves_out_ranks_of_zeros(case: Case, values: list[Any]) -> bool:
    """Here one rank's gradients are zeros, and you divide as if that rank were not there. A gradient of zeros counts,
    too: divide by the total number of ranks.
    """
    zeros = _ranks_of_zeros(case)
    return zeros > 0 and _all_are(values, _scaled(case, case.ranks / (case.ranks - zeros)))


def _ranks_of_zeros(case: Case) -> int:
    """Return how many ranks have only zeros. If all but one do, the sum is also the mean over the nonzero ranks."""
    return sum(not any(each.any() for each in own.values()) for own in case.inputs["gradients"])


@says(DIVIDED_TWICE)
def divided_twice(case: Case, values: list[Any]) -> bool:
    return _all_are(values, _scaled(case, 1 / case.ranks))


def half_for_any_number_of_ranks(case: Case, values: list[Any]) -> bool:
    """This is half of the sum, but there are more than two ranks: divide by `dist.get_world_size()`."""
    return case.ranks != 2 and _all_are(values, _scaled(case, case.ranks / 2))


def stops_at_the_unused(case: Case, values: list[Any]) -> bool:
    """A parameter without a gradient ends your loop, and the parameters after it keep each rank's own gradients. Skip
    that one parameter and continue.
    """
    means, names = _means(case), list(case.inputs["parameters"])
    first = next(place for place, name in enumerate(names) if name not in means)
    before, after = names[:first], [name for name in names[first:] if name in means]
    right = [
        {name: means[name] for name in before} | {name: own[name] for name in after} for own in case.inputs["gradients"]
    ]
    return bool(after) and _all_are(values, right)


@observed
def nothing_changed(case: Case, values: list[Any]) -> bool:
    """The gradients are still each rank's own. An all-reduce changes the tensor you pass to it: pass `parameter.grad`
    itself, or copy the result back there.
    """
    return _all_are(values, case.inputs["gradients"])


def copies_of_one_rank(case: Case, values: list[Any]) -> bool:
    """Every rank has one rank's gradients now: what the others learned from their examples is lost. A broadcast copies;
    an all-reduce adds up.
    """
    numbers = sum(mean.numel() for mean in _means(case).values())
    enough = numbers > 4  # with few numbers, one rank may happen to have the largest of each
    return enough and any(_all_are(values, [each] * case.ranks) for each in case.inputs["gradients"])


def only_one_rank_has_the_mean(case: Case, values: list[Any]) -> bool:
    """One rank has the mean and the others don't: every rank makes the update, so every rank needs it. `dist.reduce`
    leaves the sum on one rank, `dist.all_reduce` on all of them.
    """
    right = [differs(value, wanted) is None for value, wanted in zip(values, expected(case), strict=True)]
    return sum(right) == 1


@observed
def makes_gradients_up(case: Case, values: list[Any]) -> bool:
    """A parameter that had no gradient has one now. The loss doesn't depend on it, so it must not be updated, not even
    with a zero gradient (Adam would move it): leave `grad` None.
    """
    unused = [name for name in case.inputs["parameters"] if name not in case.inputs["gradients"][0]]
    return any(value["gradients"][name] is not None for value in values for name in unused)


@observed
def some_left_out(case: Case, values: list[Any]) -> bool:
    """Some parameters have the mean, others still have each rank's own gradient: your loop does not reach all of them.
    Average every parameter of `model.parameters()` that has a gradient; skip one without, and continue.
    """
    means, right = _means(case), 0
    for name, mean in means.items():
        found = [value["gradients"][name] for value in values]
        averaged = differs(found, [mean] * case.ranks) is None
        if not averaged and differs(found, [each[name] for each in case.inputs["gradients"]]):
            return False
        right += averaged
    return 0 < right < len(means)


def skips_zeros(model):
    """A rank whose gradient is zero skips the call, and the others hang."""
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.grad.any():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


EXERCISE = Exercise(
    **texts("02.1"),
    cases=cases,
    drive=drive,
    private={"gradients": by_rank},
    judge=same_as(expected),
    symptoms=(
        made_the_update,
        changed_the_parameters,
        stops_at_the_unused,
        nothing_changed,
        the_sum,
        leaves_out_ranks_of_zeros,
        divided_twice,
        half_for_any_number_of_ranks,
        copies_of_one_rank,
        only_one_rank_has_the_mean,
        makes_gradients_up,
        some_left_out,
    ),
    hanging=skips_zeros,
)
