"""01.2 Carry the state: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.lstm.model import SequenceModel, detach_states, lstm_model


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, windows: int, layers: int) -> Case:
        shapes = {name: value.shape for name, value in _model(layers).state_dict().items()}
        weights = {name: torch.randn(s, generator=generator, dtype=torch.float64) for name, s in shapes.items()}
        inputs, targets = (
            torch.randn(windows, 3, 2, 1, generator=generator, dtype=torch.float64) for _ in ("inputs", "targets")
        )
        says = f"{windows} window{'s' if windows > 1 else ''} of 3 steps, 2 streams, {layers} layer{'s' * (layers > 1)}"
        return Case(part, 1, {"weights": weights, "windows": list(zip(inputs, targets, strict=True))}, says)

    return [case("one window", 1, 1), case("windows", 2, 1), case("windows", 3, 2)]


def drive(answer, weights: dict[str, Tensor], windows: list):
    model = _model(sum("weight_hh" in name for name in weights))
    model.load_state_dict(weights)
    losses, states = answer(model, torch.optim.SGD(model.parameters(), lr=0.5), windows)
    return {
        "losses": [float(loss) for loss in losses],
        "states": {place: list(state) for place, state in states.items()},
        "weights": {name: parameter.detach() for name, parameter in model.named_parameters()},
    }


def _model(layers: int) -> SequenceModel:
    return lstm_model(features=1, hidden=2, layers=layers, outputs=1).double()


def expected(case: Case) -> list:
    def carried(model, optimizer, windows):
        losses, states = [], {}
        for inputs, targets in windows:
            outputs, states = model(inputs, detach_states(states))
            losses.append(_update(optimizer, outputs, targets))
        return losses, detach_states(states)

    return [drive(carried, **case.inputs)]


def _update(optimizer, outputs, targets, **options):
    loss = (outputs - targets).square().mean()
    optimizer.zero_grad()
    loss.backward(**options)
    optimizer.step()
    return loss.item()


def begins_anew(model, optimizer, windows):
    """Every window begins in a state of zeros, and the model remembers nothing beyond a window. Hand the state in that
    the window before it has left.
    """
    losses, states = [], {}
    for inputs, targets in windows:
        outputs, states = model(inputs, {})
        losses.append(_update(optimizer, outputs, targets))
    return losses, states


def keeps_the_history(model, optimizer, windows):
    """The second backward pass runs on into the first window, whose activations are gone: the state you carry still
    has its history, be it h or c. Carry the numbers alone: `detach`, both of them.
    """
    losses, states = [], {}
    for inputs, targets in windows:
        outputs, states = model(inputs, states)
        losses.append(_update(optimizer, outputs, targets))
    return losses, states


def retains_the_graph(model, optimizer, windows):
    """`retain_graph=True` is PyTorch's advice, and it makes things worse: the second backward pass goes through the
    first window with weights that have changed since. The gradient is to stop at the window's edge: `detach`.
    """
    losses, states = [], {}
    for inputs, targets in windows:
        outputs, states = model(inputs, states)
        losses.append(_update(optimizer, outputs, targets, retain_graph=True))
    return losses, states


def carries_h_alone(model, optimizer, windows):
    """You carry h and begin each window with c of zeros. An LSTM's state is the pair of them, and it is c that
    remembers for long.
    """
    losses, states = [], {}
    for inputs, targets in windows:
        begin = {place: (h.detach(), torch.zeros_like(c)) for place, (h, c) in states.items()}
        outputs, states = model(inputs, begin)
        losses.append(_update(optimizer, outputs, targets))
    return losses, states


def updates_once(model, optimizer, windows):
    """One update for all windows together, through all of their history: an exact gradient, but all activations are
    kept for it, which is what windows are to avoid. Update after each of them.
    """
    losses, states, total = [], {}, torch.zeros(())
    for inputs, targets in windows:
        outputs, states = model(inputs, states)
        loss = (outputs - targets).square().mean()
        losses.append(loss.item())
        total = total + loss
    optimizer.zero_grad()
    (total / len(windows)).backward()
    optimizer.step()
    return losses, states


def never_zeroes(model, optimizer, windows):
    """The second update still has the first window's gradient in it: `backward()` adds to what is there. Zero the
    gradients before each.
    """
    losses, states = [], {}
    for inputs, targets in windows:
        outputs, states = model(inputs, detach_states(states))
        loss = (outputs - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, states


EXERCISE = Exercise(
    number="01.2",
    title="Carry the state",
    answer="train_on_windows",
    level="exercise",
    minutes=15,
    parts={"one window": 1, "windows": 3},
    read="5 · Text, and the state that is carried",
    hints=(
        "What does the model need to begin a window where the one before it ended? It gave it to you.",
        "The numbers of the state go on; their history does not. On which line does the history end?",
        "`course_lib.lstm.model.detach_states(states)` cuts every h and c from the graph that made them.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        begins_anew,
        keeps_the_history,
        retains_the_graph,
        carries_h_alone,
        updates_once,
        never_zeroes,
    ),
)
