"""04.3 Hooks that are right under accumulation: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.checks.lesson_04 import FEATURES, linear


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, k: int, updates: int) -> Case:
        passes = torch.randn(ranks, updates, k, FEATURES, generator=generator, dtype=torch.float64)
        says = f"k = {k}, {updates} update{'s' if updates > 1 else ''}, a weight and a bias"
        return Case(part, ranks, {"passes": passes}, says)

    return [
        case("one micro-batch", 2, 1, 1),
        case("several micro-batches", 2, 3, 1),
        case("several updates", 3, 2, 2),
    ]


def drive(answer, passes: Tensor):
    """The gradients after every backward pass: of the weight the inputs, of the bias their first number's square."""
    model = linear(torch.ones(1, FEATURES))
    answer(model, passes.shape[2])
    seen = {}
    for update in passes[dist.get_rank()]:
        for inputs in update:
            (model.weight @ inputs + model.bias * inputs[0].square()).sum().backward()
            number = len(seen) // 2 + 1
            for name, parameter in (("weight", model.weight), ("bias", model.bias)):
                gradient = parameter.grad  # None if a hook has taken it away
                copy = None if gradient is None else gradient.flatten().clone()
                seen[f"the {name}'s gradient after pass {number}"] = copy
        model.zero_grad()
    return seen


def expected(case: Case) -> list:
    passes = case.inputs["passes"]
    sums = {"weight": passes.cumsum(dim=2), "bias": passes[..., :1].square().cumsum(dim=2)}
    for accumulated in sums.values():
        accumulated[:, :, -1] = accumulated[:, :, -1].mean(dim=0)
    flat = {name: accumulated.flatten(1, 2) for name, accumulated in sums.items()}
    return [
        {
            f"the {name}'s gradient after pass {number + 1}": flat[name][rank, number]
            for number in range(flat["weight"].shape[1])
            for name in flat
        }
        for rank in range(case.ranks)
    ]


def _mean_over_ranks(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def last_gradient_only(model, k):
    """A tensor hook sees *this backward pass's* gradient, not what has been accumulated: with one micro-batch it is
    right, and its test passes. What the earlier ones left in `.grad` is never averaged. There is a hook that runs
    *after* the gradient has been added.
    """
    for parameter in model.parameters():
        calls = []

        def hook(gradient, calls=calls):
            calls.append(1)
            if len(calls) % k:
                return gradient
            gradient = gradient.clone()
            _mean_over_ranks(gradient)
            return gradient

        parameter.register_hook(hook)


def _after_accumulation(model, hook):
    for place, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda tensor, place=place: hook(tensor, place))


def parameter_instead(model, k):
    """The hook is given the *parameter*, and you average that. All ranks' parameters are equal: it is a costly way to
    do nothing, and every rank keeps its own gradient. It is `parameter.grad` that must be averaged.
    """
    calls = [0, 0]

    def hook(parameter, place):
        calls[place] += 1
        if calls[place] % k == 0:
            _mean_over_ranks(parameter.data)

    _after_accumulation(model, hook)


def sends_every_time(model, k):
    """Every backward pass sends: k messages where one would do. What is in `.grad` at the end is right, but before
    that it must be this rank's own sum. Let only the k-th pass send.
    """
    _after_accumulation(model, lambda parameter, place: _mean_over_ranks(parameter.grad))


def adds_up(model, k):
    """This is the sum over the ranks. The exercise asks for their mean: divide by the number of ranks."""
    calls = [0, 0]

    def hook(parameter, place):
        calls[place] += 1
        if calls[place] % k == 0:
            dist.all_reduce(parameter.grad)

    _after_accumulation(model, hook)


def counts_hooks_not_passes(model, k):
    """You count calls of the hook, and a backward pass calls it once for *each* parameter: the k-th call comes in the
    middle of some pass. Count the passes, or the calls of each parameter.
    """
    calls = [0]

    def hook(parameter, place):
        calls[0] += 1
        if calls[0] % k == 0:
            _mean_over_ranks(parameter.grad)

    _after_accumulation(model, hook)


def works_once(model, k):
    """The first update is right. Then your count goes on from k, and no later pass is the k-th again: start over after
    each update.
    """
    calls = [0, 0]

    def hook(parameter, place):
        calls[place] += 1
        if calls[place] == k:
            _mean_over_ranks(parameter.grad)

    _after_accumulation(model, hook)


EXERCISE = Exercise(
    number="04.3",
    title="Hooks that are right under accumulation",
    answer="average_with_hooks",
    level="build",
    minutes=30,
    parts={"one micro-batch": 1, "several micro-batches": 3, "several updates": 1},
    read="4 · Broken on purpose: two published hooks",
    hints=(
        "`register_hook` gives you the gradient of one backward pass, before it is added to `.grad`. Which hook comes "
        "after that?",
        "`parameter.register_post_accumulate_grad_hook(hook)` calls `hook(parameter)` when `parameter.grad` has this "
        "pass in it.",
        "How does a hook know that this is the k-th pass of an update? Each parameter's hook is called once per pass.",
        "A function defined in a loop sees the loop's *last* values. Make the hook in a function of its own, with a "
        "count of its own.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        last_gradient_only,
        parameter_instead,
        sends_every_time,
        adds_up,
        counts_hooks_not_passes,
        works_once,
    ),
)
