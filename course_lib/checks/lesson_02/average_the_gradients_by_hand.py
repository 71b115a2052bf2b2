"""02.1 Average the gradients by hand: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, names: list[str], says: str) -> Case:
        gradients = [
            {name: torch.randn(2, generator=generator, dtype=torch.float64) for name in names} for _ in range(ranks)
        ]
        return Case(part, ranks, {"gradients": gradients}, says)

    return [
        case("the mean", 2, ["weight"], "one parameter of two numbers"),
        case("the mean", 3, ["weight", "bias"], "two parameters of two numbers"),
        case("unused parameters", 2, ["bias"], "a parameter that has no gradient, before one that has"),
    ]


def drive(answer, gradients: list[dict[str, Tensor]]):
    model = nn.Module()
    for name in ("weight", "bias"):
        model.register_parameter(name, nn.Parameter(torch.ones(2, dtype=torch.float64)))
        if name in gradients[dist.get_rank()]:
            getattr(model, name).grad = gradients[dist.get_rank()][name]
    answer(model)
    return {name: (parameter.detach(), parameter.grad) for name, parameter in model.named_parameters()}


def expected(case: Case) -> list:
    gradients = case.inputs["gradients"]
    means = {name: torch.stack([each[name] for each in gradients]).mean(0) for name in gradients[0]}
    ones = torch.ones(2, dtype=torch.float64)
    return [{name: (ones, means.get(name)) for name in ("weight", "bias")}] * case.ranks


def adds_up(model):
    """This is the sum of the gradients. The loss is a mean over all examples, so its gradient is the mean over the
    ranks: divide by their number, or your learning rate is as many times too large.
    """
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def averages_the_parameter(model):
    """The gradients are still each rank's own. Averaging the *parameters* changes nothing here: they were equal.
    It is `parameter.grad` that differs.
    """
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


def stops_at_the_first(model):
    """A parameter without a gradient ends your loop, and those after it keep their own. Skip that one parameter,
    and go on.
    """
    for parameter in model.parameters():
        if parameter.grad is None:
            return
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def takes_rank_0s(model):
    """Every rank has rank 0's gradient now: what the other ranks have learned from their examples is lost. A
    broadcast copies, an all-reduce adds up.
    """
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.broadcast(parameter.grad, src=0)


def forgets_the_unused(model):
    """A parameter that the loss does not depend on has no gradient: `grad` is None, and there is nothing to send."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


EXERCISE = Exercise(
    number="02.1",
    title="Average the gradients by hand",
    answer="average_gradients",
    level="warm-up",
    minutes=5,
    parts={"the mean": 2, "unused parameters": 1},
    read="2 · By hand",
    hints=(
        "Which call leaves the sum over all ranks in a tensor, on every rank?",
        "`dist.all_reduce(tensor)` adds up in place. What makes a mean of a sum?",
        "A parameter that took no part in the forward pass has `grad` None: there is nothing to send.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        adds_up,
        averages_the_parameter,
        stops_at_the_first,
        takes_rank_0s,
        forgets_the_unused,
    ),
)
