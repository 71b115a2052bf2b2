"""07.4 Shard the optimizer: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import math
from contextlib import contextmanager
from random import Random

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Cost, Exercise, differs, draw, seeded
from course_lib.checks.private import by_rank_inside
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import observed, over_budget

VALUES, STATE, BYTES = "the same as one process", "a share of the state", "no more bytes than needed"
RATES, MOMENTUMS, STEPS = (0.05, 0.1, 0.2), (0.8, 0.9, 0.95), 3
SPARE = 1.1  # the budget, over the bytes that must be sent: pieces may be padded to equal sizes

Shape = tuple[int, ...]


def cases(seed: int) -> list[Case]:
    generator, chance = seeded(seed), Random(seed)

    def case(part: str, ranks: int, shapes: list[Shape]) -> Case:
        def numbers() -> list[Tensor]:
            return [torch.randn(shape, generator=generator) for shape in shapes]

        inputs = {
            "weights": numbers(),
            "gradients": [[numbers() for _ in range(ranks)] for _ in range(STEPS)],
            "rates": (chance.choice(RATES), chance.choice(MOMENTUMS)),  # drawn, so that an answer can't hard-code them
        }
        sizes = ", ".join(" x ".join(map(str, shape)) for shape in shapes)
        one = "1 parameter" if len(shapes) == 1 else f"{len(shapes)} parameters"
        return Case(part, ranks, inputs, f"{one} of {sizes}")

    def some(chance: Random) -> list[Shape]:
        count = chance.randint(1, 7)
        return [tuple(chance.randint(1, 6) for _ in range(chance.randint(1, 2))) for _ in range(count)]

    drawn = draw(some, 6, seed)
    return [
        *(case(VALUES, 2, shapes) for shapes in ([(3,), (3,)], [(2, 3), (4,), (1,)], [(5,)], *drawn[::2])),
        *(case(VALUES, 3, shapes) for shapes in ([(4,)], [(2, 2), (3,)], *drawn[1::2])),
        case(STATE, 2, [(40,), (2,)] * 4),
        case(STATE, 2, [(5, 10), (40,), (30,), (3,), (2,), (1,)]),
        case(STATE, 3, [(100,), (3,), (3,), (3,)]),
        case(STATE, 3, [(1,), (2,), (3,), (60,), (60,), (60,), (60,)]),
        case(BYTES, 2, [(40, 40), (40,), (20, 20)]),
        case(BYTES, 3, [(30, 30), (30,), (500,), (500,)]),
    ]


class Momentum:
    """The optimizer that `make_optimizer` returns: SGD with momentum. Its state exists from the first step on, as in
    torch.optim. In each step, it and its copies append the bytes that they update to `updated`.
    """

    def __init__(self, tensors, rates: tuple[float, float], updated: list[int] | tuple = ()) -> None:
        self.tensors: list[Tensor] = list(tensors)
        self.state: dict[int, Tensor] = {}
        self.rate, self.momentum = rates
        self.note = getattr(updated, "append", lambda size: None)  # deepcopy keeps a bound built-in as it is

    @torch.no_grad()
    def step(self) -> None:
        for index, tensor in enumerate(self.tensors):
            if tensor.grad is not None:
                speed = self.state.setdefault(index, torch.zeros_like(tensor))
                speed.mul_(self.momentum).add_(tensor.grad)
                tensor.sub_(self.rate * speed)
                self.note(tensor.numel() * tensor.itemsize)

    def zero_grad(self) -> None:
        for tensor in self.tensors:
            tensor.grad = None


def drive(answer, weights: list[Tensor], gradients: list[list[list[Tensor]]], rates: tuple[float, float]):
    """Return the parameters after each step, the bytes sent per step, and the bytes of this rank's state: what it has
    at the end, or what it updates in a step if that is more, since the state has a number for every updated number.
    """
    from course_lib.core.metering import meter

    made: list[Momentum] = []
    updated: list[int] = []
    parameters = [nn.Parameter(weight) for weight in weights]

    def make_optimizer(tensors) -> Momentum:
        made.append(Momentum(tensors, rates, updated))
        return made[-1]

    step, seen = answer(parameters, make_optimizer), []
    with meter() as spent, watching_reduce_scatters() as scattered:
        for of_ranks in gradients:
            for parameter, gradient in zip(parameters, of_ranks[dist.get_rank()], strict=True):
                parameter.grad = gradient
            step()
            seen.append([parameter.detach().clone() for parameter in parameters])
    kept = [speed.numel() * speed.itemsize for optimizer in made for speed in optimizer.state.values()]
    bytes_sent = sent(spent.as_data(), sum(scattered), dist.get_world_size())
    return {"parameters": seen, "state": max(sum(kept), sum(updated) // STEPS), "bytes": bytes_sent / STEPS}


@contextmanager
def watching_reduce_scatters():
    """Yield a list that collects the input sizes of reduce-scatters in bytes. Gloo implements them as all-reduces, and
    the meter sees only those.
    """
    sizes: list[int] = []
    names = ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single")
    before = {name: getattr(dist.ProcessGroup, name) for name in names if hasattr(dist.ProcessGroup, name)}

    def noting(call):
        def noted(group, output, given, *arguments, **keywords):
            flat = [given] if isinstance(given, Tensor) else [tensor for pieces in given for tensor in pieces]
            sizes.extend(tensor.numel() * tensor.itemsize for tensor in flat)
            return call(group, output, given, *arguments, **keywords)

        return noted

    for name, call in before.items():
        setattr(dist.ProcessGroup, name, noting(call))
    try:
        yield sizes
    finally:
        for name, call in before.items():
            setattr(dist.ProcessGroup, name, call)


def sent(spent: dict, scattered: int, ranks: int) -> float:
    """Return the bytes as the exercise counts them: an all-reduce twice, an all-gather with the inputs of all ranks."""
    payload = dict(spent["payload"])
    payload["all_reduce"] = payload.get("all_reduce", 0) + payload.get("reduce_scatter", 0) - scattered
    payload["reduce_scatter"] = scattered
    times = {"all_reduce": 2, "all_reduce_coalesced": 2, "all_gather": ranks, "all_gather_coalesced": ranks}
    return sum(times.get(name, 1) * size for name, size in payload.items()) + sum(spent["sent_to"].values())


def judge(case: Case, values: list) -> str | None:
    right = one_process(case)
    for rank, value in enumerate(values):
        for step, (found, wanted) in enumerate(zip(value["parameters"], right, strict=True)):
            difference = differs(found, wanted, "parameters")
            if difference:
                return f"rank {rank}, after step {step + 1}: {difference}"
    if case.part == STATE and sum(value["state"] for value in values) < everything(case):
        return "the parameters are right, but optimizers from `make_optimizer` have not updated all of them"
    return None


def everything(case: Case) -> int:
    """Return the bytes of all parameters, and of their state."""
    return sum(weight.numel() * weight.itemsize for weight in case.inputs["weights"])


def costs(case: Case, values: list) -> list[Cost]:
    sizes = [weight.numel() * weight.itemsize for weight in case.inputs["weights"]]
    if case.part == STATE:
        most = max(value["state"] for value in values)
        return [Cost("bytes of state on the rank with most", most, math.ceil(sum(sizes) / case.ranks) + max(sizes))]
    if case.part == BYTES:
        most = max(value["bytes"] for value in values)
        return [Cost("bytes sent per step", most, math.ceil(2 * SPARE * sum(sizes)))]
    return []


def one_process(case: Case, momentum: bool = True, times: float = 1.0) -> list[list[Tensor]]:
    """Return the parameters after each step in one process that uses the sum of all gradients, times `times`."""
    parameters = [weight.clone() for weight in case.inputs["weights"]]
    rates = case.inputs["rates"]
    optimizer, seen = Momentum(parameters, rates), []
    for of_ranks in case.inputs["gradients"]:
        optimizer = optimizer if momentum else Momentum(parameters, rates)
        for parameter, of_parameter in zip(parameters, zip(*of_ranks, strict=True), strict=True):
            parameter.grad = times * torch.stack(of_parameter).sum(0)
        optimizer.step()
        seen.append([parameter.clone() for parameter in parameters])
    return seen


def on_all_ranks(values: list, wanted: list[list[Tensor]]) -> bool:
    return all(differs(value["parameters"], wanted) is None for value in values)


def after_one_step(values: list) -> list[list[Tensor]]:
    """Return what the ranks hold for each parameter."""
    return [list(of_ranks) for of_ranks in zip(*(value["parameters"][0] for value in values), strict=True)]


@observed
def nothing_happens(case: Case, values: list) -> bool:
    """The parameters are unchanged. The function you return is called after every backward pass: it must update the
    tensors in `parameters` in place.
    """
    return on_all_ranks(values, [case.inputs["weights"]] * STEPS)


def state_is_lost(case: Case, values: list) -> bool:
    """The first step is right, but the others have no momentum. This is what you get if the optimizer is created anew
    at every step and has lost its state: create it once.
    """
    return on_all_ranks(values, one_process(case, momentum=False))


def mean_of_the_ranks(case: Case, values: list) -> bool:
    """You update with the *mean* of the ranks' gradients. The exercise asks for their sum."""
    return on_all_ranks(values, one_process(case, times=1 / case.ranks))


def added_up_again(case: Case, values: list) -> bool:
    """You update with a multiple of the sum. This is what you get if gradients that are already summed are summed once
    more.
    """
    return any(on_all_ranks(values, one_process(case, times=times)) for times in (2, case.ranks))


@observed
def not_given_to_all(case: Case, values: list) -> bool:
    """After a step, each parameter is right on some rank and unchanged on another: its owner has updated it, and the
    others do not have it. After the update, every part goes from its owner to all the others.
    """
    pairs = zip(after_one_step(values), one_process(case)[0], case.inputs["weights"], strict=True)
    return all(
        any(differs(one, right) is None for one in of_ranks)
        and any(differs(one, right) is not None for one in of_ranks)
        and all(differs(one, right) is None or differs(one, before) is None for one in of_ranks)
        for of_ranks, right, before in pairs
    )


def gradient_of_one_rank(case: Case, values: list) -> bool:
    """A parameter is updated with the gradient of one rank alone. First add up the gradients of all ranks, on the rank
    that has the parameter's state.
    """
    gradients = zip(*case.inputs["gradients"][0], strict=True)
    every = zip(after_one_step(values), case.inputs["weights"], gradients, strict=True)
    return all(
        any(differs(one, before - case.inputs["rates"][0] * gradient) is None for gradient in of_all)
        for of_ranks, before, of_all in every
        for one in of_ranks
    )


@observed
def some_are_never_updated(case: Case, values: list) -> bool:
    """Some parameters are right, and others are unchanged on all ranks: no rank owns them, or their owner sends them
    before it has updated them, or a rank that is not their owner sends them. Which rank has the state of each, and
    which sends it?
    """
    pairs = zip(after_one_step(values), one_process(case)[0], case.inputs["weights"], strict=True)
    wrong = [(one, before) for of_ranks, right, before in pairs for one in of_ranks if differs(one, right) is not None]
    return bool(wrong) and all(differs(one, before) is None for one, before in wrong)


@observed
def only_their_own_ranks(case: Case, values: list) -> bool:
    """The ranks have different parameters after a step. All ranks must have the same parameters: the ones that the
    owners have updated.
    """
    return any(differs(value["parameters"], values[0]["parameters"]) is not None for value in values)


def state_of_everything(case: Case, values: list) -> bool:
    """Every rank holds the state of all parameters, as in plain data parallelism. Create an optimizer for this rank's
    part alone; the other parts come from the other ranks.
    """
    return too_much(case, values) and case.part == STATE and all(v["state"] >= everything(case) for v in values)


def held_more_than_once(case: Case, values: list) -> bool:
    """Some of the state is on more than one rank. Every number in it belongs on exactly one rank, its owner."""
    several = sum(value["state"] for value in values) > 1.1 * everything(case)
    return too_much(case, values) and case.part == STATE and several


def parts_of_unequal_size(case: Case, values: list) -> bool:
    """The parts are unequal: one rank has more than its share plus the largest parameter. (An equal split of
    *parameters* is not an equal split of *numbers*.) Give each parameter, largest first, to the rank with the fewest
    numbers so far, or cut the numbers themselves into equal pieces.
    """
    return too_much(case, values) and case.part == STATE


@observed
def a_home_made_optimizer(case: Case, values: list) -> bool:
    """The parameters are right, but not because of `make_optimizer`: state that you keep elsewhere is state, too. Let
    the optimizers that it makes update the parameters, each number on one rank.
    """
    wanted = one_process(case)
    return case.part == STATE and on_all_ranks(values, wanted) and judge(case, values) is not None


def sends_what_nobody_needs(case: Case, values: list) -> bool:
    """More bytes are sent than needed. The sum of a gradient is needed by one rank only: `reduce` or `reduce_scatter`
    sends it there, while `all_reduce` sends it to every rank. And a rank should send only its own part of the
    parameters.
    """
    return too_much(case, values) and case.part == BYTES


def too_much(case: Case, values: list) -> bool:
    return over_budget(judge, costs, case, values)


EXERCISE = Exercise(
    **texts("07.4"),
    cases=cases,
    drive=drive,
    private={"gradients": by_rank_inside},
    judge=judge,
    costs=costs,
    symptoms=(
        a_home_made_optimizer,
        state_of_everything,
        held_more_than_once,
        parts_of_unequal_size,
        sends_what_nobody_needs,
        nothing_happens,
        state_is_lost,
        mean_of_the_ranks,
        added_up_again,
        not_given_to_all,
        some_are_never_updated,
        gradient_of_one_rank,
        only_their_own_ranks,
    ),
)
