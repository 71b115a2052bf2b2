"""01.2 Carry the state: the check, and the wrong answers it recognizes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, differs, same_as, seeded
from course_lib.checks.texts import texts
from course_lib.core.model import SequenceModel, detach_states, lstm_model
from course_lib.lessons.symptoms import observed


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, windows: int, layers: int, steps: int = 3, momentum: float = 0.0) -> Case:
        shapes = {name: value.shape for name, value in _model(layers).state_dict().items()}
        weights = {name: torch.randn(s, generator=generator, dtype=torch.float64) for name, s in shapes.items()}
        inputs, targets = (
            torch.randn(windows, steps, 2, 1, generator=generator, dtype=torch.float64) for _ in ("inputs", "targets")
        )
        counts = {"window": windows, "step": steps, "layer": layers}
        says = ", ".join(f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items()) + ", 2 streams"
        says += ", SGD with momentum" * bool(momentum)
        given = {"weights": weights, "windows": list(zip(inputs, targets, strict=True)), "momentum": momentum}
        return Case(part, 1, given, says)

    return [
        case("one window", 1, 1),
        case("one window", 1, 2, momentum=0.9),
        case("windows", 2, 1),
        case("windows", 2, 1, steps=1),
        case("windows", 3, 2),
        case("windows", 4, 1, momentum=0.9),
        case("windows", 5, 3, steps=2, momentum=0.5),
    ]


def drive(answer, weights: dict[str, Tensor], windows: list, momentum: float):
    model = _model(sum("weight_hh" in name for name in weights))
    model.load_state_dict(weights)
    made = answer(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum), windows)
    losses, states = made if isinstance(made, (tuple, list)) and len(made) == 2 else (made, None)
    return {
        "losses": losses,
        "weights": {name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        "states": states,
    }


def _model(layers: int) -> SequenceModel:
    return lstm_model(features=1, hidden=2, layers=layers, outputs=1).double()


def expected(case: Case) -> list:
    return [drive(_carried, **case.inputs)]


def _carried(model, optimizer, windows, begin=detach_states, update=True, zero=True, clip=float("inf")):
    """The reference answer; each keyword introduces one mistake."""
    losses, states = [], {}
    for inputs, targets in windows:
        outputs, states = model(inputs, begin(states))
        if update:
            losses.append(_update(optimizer, outputs, targets, zero, clip))
        else:
            losses.append((outputs - targets).square().mean().item())
    return losses, detach_states(states)


def _losses_are(case: Case, values: list[Any], **bent: Any) -> bool:
    """Return whether the losses match this mistake and not the reference."""
    losses = values[0]["losses"]
    as_bent = drive(lambda *given: _carried(*given, **bent), **case.inputs)["losses"]
    return differs(losses, as_bent) is None and differs(losses, expected(case)[0]["losses"]) is not None


def begins_anew(case: Case, values: list[Any]) -> bool:
    """Every window begins in a state of zeros, so the model remembers nothing beyond a window. Pass in the state in
    which the previous window ended.
    """
    return _losses_are(case, values, begin=lambda _: {})


def carries_h_alone(case: Case, values: list[Any]) -> bool:
    """You carry h but begin each window with c set to zeros. An LSTM's state is the pair, and c is its long-term
    memory.
    """

    def h_alone(states):
        return {place: (h.detach(), torch.zeros_like(c)) for place, (h, c) in states.items()}

    return _losses_are(case, values, begin=h_alone)


def carries_c_alone(case: Case, values: list[Any]) -> bool:
    """You carry c but begin each window with h set to zeros. An LSTM's state is the pair: the gates read h."""

    def c_alone(states):
        return {place: (torch.zeros_like(h), c.detach()) for place, (h, c) in states.items()}

    return _losses_are(case, values, begin=c_alone)


def carries_the_last_layer_alone(case: Case, values: list[Any]) -> bool:
    """You carry the state of the last layer alone, and the others begin each window with zeros. `states` has a pair for
    every layer: carry all of them.
    """
    return _losses_are(case, values, begin=lambda states: dict(list(detach_states(states).items())[-1:]))


def clips(case: Case, values: list[Any]) -> bool:
    """You clip the gradient to a norm of 1, as the lesson's loop does. This exercise asks for the update alone."""
    return _losses_are(case, values, clip=1.0)


@observed
def no_update(case: Case, values: list[Any]) -> bool:
    """The weights haven't changed: no update was made. Call `optimizer.step()` after the backward pass, and zero the
    gradients before it or after the step, but not between the two.
    """
    return differs(values[0]["weights"], case.inputs["weights"]) is None


def updates_at_the_end(case: Case, values: list[Any]) -> bool:
    """All losses are those of the initial weights: the update comes only after the last window. Update after each
    window, before you read the next one.
    """
    return _losses_are(case, values, update=False)


def never_zeroes(case: Case, values: list[Any]) -> bool:
    """The second update still has the first window's gradient in it: `backward()` adds to `.grad`. Zero the gradients
    before each backward pass.
    """
    as_bent = drive(lambda *given: _carried(*given, zero=False), **case.inputs)["weights"]
    return differs(values[0]["weights"], as_bent) is None and len(case.inputs["windows"]) > 1


@observed
def other_states(case: Case, values: list[Any]) -> bool:
    """Losses and weights are right here, but the states that you return are not those in which the last window ended.
    Return the states that the model returned for that window, before the update.
    """
    right = expected(case)[0]
    return all(differs(values[0][name], right[name]) is None for name in ("losses", "weights"))


@observed
def other_losses(case: Case, values: list[Any]) -> bool:
    """States and weights are right here, but the losses that you return are not. Return a list with one number for each
    window, in order: the loss on which you called `backward()`, as it was before the update.
    """
    right = expected(case)[0]
    return all(differs(values[0][name], right[name]) is None for name in ("states", "weights"))


def carries_a_second_pass(case: Case, values: list[Any]) -> bool:
    """You run each window again after its update, and carry the states of that second pass. Take both the loss and the
    states from the first pass, the one that you called `backward()` on: the next window begins where it ended.
    """

    def twice(model, optimizer, windows, is_measured_again: bool):
        losses, states = [], {}
        for inputs, targets in windows:
            begin = detach_states(states)
            losses.append(_update(optimizer, model(inputs, begin)[0], targets))
            outputs, states = model(inputs, begin)
            if is_measured_again:
                losses[-1] = (outputs - targets).square().mean().item()
        return losses, detach_states(states)

    bent = (drive(partial(twice, is_measured_again=each), **case.inputs) for each in (False, True))
    return any(differs(values[0], each) is None for each in bent)


def without_momentum(case: Case, values: list[Any]) -> bool:
    """The updates are those of plain SGD, but this optimizer has momentum. How to update is the optimizer's business:
    call `optimizer.step()`.
    """
    inputs: dict[str, Any] = case.inputs | {"momentum": 0.0}
    plain = drive(_carried, **inputs)["weights"]
    return bool(case.inputs["momentum"]) and differs(values[0]["weights"], plain) is None


@observed
def nothing_returned(case: Case, values: list[Any]) -> bool:
    """You must return two things: the list of losses, and the states after the last window."""
    return values[0]["states"] is None


def _update(optimizer, outputs, targets, zero=True, clip=float("inf")):
    loss = (outputs - targets).square().mean()
    if zero:
        optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([each for group in optimizer.param_groups for each in group["params"]], clip)
    optimizer.step()
    return loss.item()


EXERCISE = Exercise(
    **texts("01.2"),
    cases=cases,
    drive=drive,
    modules=("torch._dynamo",),
    judge=same_as(expected),
    symptoms=(
        nothing_returned,
        no_update,
        begins_anew,
        carries_h_alone,
        carries_c_alone,
        carries_the_last_layer_alone,
        clips,
        updates_at_the_end,
        never_zeroes,
        without_momentum,
        carries_a_second_pass,
        other_states,
        other_losses,
    ),
)
