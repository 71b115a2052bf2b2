"""01.3 Bytes before it runs: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, layers: int, same_width: bool) -> Case:
        hidden, features, steps, sequences = (
            int(torch.randint(low, low + 8, (1,), generator=generator)) for low in (10, 20, 30, 40)
        )
        sizes = {"features": hidden if same_width else features, "hidden": hidden, "layers": layers}
        sizes |= {"steps": steps, "sequences": sequences, "bytes_each": 2 if part == "half the bytes" else 4}
        return Case(part, 1, {"sizes": sizes}, ", ".join(f"{name} {size}" for name, size in sizes.items()))

    return [
        case("one layer", 1, True),
        case("several layers", 3, True),
        case("several layers", 2, False),
        case("half the bytes", 2, False),
    ]


def drive(answer, sizes: dict[str, int]):
    return dict(answer(**sizes))


def expected(case: Case) -> list:
    sizes = case.inputs["sizes"]
    lstm = nn.LSTM(sizes["features"], sizes["hidden"], sizes["layers"], device="meta")
    parameters = sum(parameter.numel() for parameter in lstm.parameters())
    activations = 7 * sizes["hidden"] * sizes["layers"] * sizes["steps"] * sizes["sequences"]
    numbers = {"parameters": parameters, "gradients": parameters, "optimizer": 2 * parameters}
    return [{name: sizes["bytes_each"] * count for name, count in (numbers | {"activations": activations}).items()}]


def _bytes(
    features, hidden, layers, steps, sequences, bytes_each, *, gates=4, biases=2, adam=2, units=7, width=None, kept=None
):
    widths = [features if width is None else width, *[hidden] * (layers - 1)]
    parameters = bytes_each * sum(gates * (wide * hidden + hidden * hidden + biases * hidden) for wide in widths)
    activations = bytes_each * units * hidden * layers * steps * sequences if kept is None else kept
    numbers = {"parameters": parameters, "gradients": parameters, "optimizer": adam * parameters}
    return numbers | {"activations": activations}


def one_gate(**sizes):
    """These are the parameters of a plain recurrent layer. An LSTM has four such sets: three gates and the new
    content.
    """
    return _bytes(**sizes, gates=1)


def a_single_bias(**sizes):
    """PyTorch has two biases for each gate, one beside each matrix: 2H and not H."""
    return _bytes(**sizes, biases=1)


def one_number_for_adam(**sizes):
    """Adam keeps two numbers per parameter: the mean of its gradients, and the mean of their squares. One is what
    momentum needs.
    """
    return _bytes(**sizes, adam=1)


def keeps_h_alone(**sizes):
    """You count the outputs only, H for each step. To go back through a cell, autograd needs the four gates, c, tanh c
    and h.
    """
    return _bytes(**sizes, units=1)


def forgets_the_steps(**sizes):
    """The activations of one step: but those of *all* steps must be there when the backward pass begins."""
    one_step = sizes["bytes_each"] * 7 * sizes["hidden"] * sizes["layers"] * sizes["sequences"]
    return _bytes(**sizes, kept=one_step)


def one_layer_of_activations(**sizes):
    """The activations of one layer: every layer keeps its own until the backward pass has come to it."""
    one_layer = sizes["bytes_each"] * 7 * sizes["hidden"] * sizes["steps"] * sizes["sequences"]
    return _bytes(**sizes, kept=one_layer)


def all_layers_alike(**sizes):
    """You took all layers for H wide inside and H wide in front. The first one reads the *features*: its input weights
    are as wide as these.
    """
    return _bytes(**sizes, width=sizes["hidden"])


def always_four_bytes(**sizes):
    """You count 4 bytes for a number whatever `bytes_each` says. That is float32; bfloat16 has 2."""
    return _bytes(**sizes | {"bytes_each": 4})


EXERCISE = Exercise(
    number="01.3",
    title="Bytes before it runs",
    answer="memory_of_lstm",
    level="exercise",
    minutes=15,
    parts={"one layer": 1, "several layers": 2, "half the bytes": 1},
    read="3 · Where the memory goes",
    hints=(
        "Count numbers first, and multiply by `bytes_each` at the end.",
        "A layer has four sets of: a matrix for its inputs, a matrix for h, and two biases. How wide are the inputs of "
        "the first layer, and of the others?",
        "Only the activations depend on steps and sequences: 7 numbers per hidden unit, for each layer, step and "
        "sequence.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        one_gate,
        a_single_bias,
        one_number_for_adam,
        keeps_h_alone,
        forgets_the_steps,
        one_layer_of_activations,
        all_layers_alike,
        always_four_bytes,
    ),
)
