"""01.3 Bytes before it runs: the check, and the wrong answers it recognizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from torch import nn

from course_lib.checks.exercise import Case, Exercise, differs, draw
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import Symptom, says

NAMES = ("parameters", "gradients", "optimizer", "activations")
ONE, SEVERAL, HALF = "one layer", "several layers", "half the bytes"


def cases(seed: int) -> list[Case]:
    def case(part: str, sizes: dict[str, int]) -> Case:
        return Case(part, 1, {"sizes": sizes}, ", ".join(f"{name} {size}" for name, size in sizes.items()))

    def some(layers: tuple[int, ...], widths: tuple[int, int] | None = None, bytes_each: tuple[int, ...] = (4,)):
        def make(chance: random.Random) -> dict[str, int]:
            hidden, features = chance.randint(10, 17), chance.randint(20, 27)
            if widths:
                hidden, features = widths
            return {
                "features": features,
                "hidden": hidden,
                "layers": chance.choice(layers),
                "steps": chance.randint(30, 37),
                "sequences": chance.randint(40, 47),
                "bytes_each": chance.choice(bytes_each),
            }

        return make

    return [
        *(case(ONE, sizes) for sizes in draw(some((1,), widths=(5, 5)), 1, seed)),
        *(case(ONE, sizes) for sizes in draw(some((1,)), 2, seed)),
        *(case(SEVERAL, sizes) for sizes in draw(some((3,), widths=(6, 6)), 1, seed)),
        *(case(SEVERAL, sizes) for sizes in draw(some((2, 3, 5)), 3, seed)),
        *(case(SEVERAL, sizes) for sizes in draw(some((4,), widths=(9, 1)), 1, seed)),
        *(case(HALF, sizes) for sizes in draw(some((2, 3), bytes_each=(2,)), 2, seed)),
        *(case(HALF, sizes) for sizes in draw(some((2,), bytes_each=(8,)), 1, seed)),
    ]


def drive(answer, sizes: dict[str, int]):
    return answer(**sizes)


def judge(case: Case, values: list[Any]) -> str | None:
    made, right = values[0], expected(case)
    if not isinstance(made, dict) or not made.keys() >= set(NAMES):
        return f"it should be a dict with {', '.join(NAMES)}"
    return next(filter(None, (differs(made[name], right[name], name) for name in NAMES)), None)


def expected(case: Case) -> dict[str, int]:
    sizes = case.inputs["sizes"]
    lstm = nn.LSTM(sizes["features"], sizes["hidden"], sizes["layers"], device="meta")
    parameters = sizes["bytes_each"] * sum(parameter.numel() for parameter in lstm.parameters())
    activations = 7 * sizes["hidden"] * sizes["layers"] * sizes["steps"] * sizes["sequences"] * sizes["bytes_each"]
    return {
        "parameters": parameters,
        "gradients": parameters,
        "optimizer": 2 * parameters,
        "activations": activations,
    }


def _parameters(case: Case, *, gates: int = 4, biases: int = 2, width: str = "features", squares: int = 1) -> int:
    """Return the bytes of the parameters; each keyword introduces one mistake."""
    sizes = case.inputs["sizes"]
    hidden, layers = sizes["hidden"], sizes["layers"]
    widths = [sizes[width]] + [hidden] * (layers - 1) if width != "everywhere" else [sizes["features"]] * layers
    numbers = sum(gates * (wide * hidden + squares * hidden * hidden + biases * hidden) for wide in widths)
    return sizes["bytes_each"] * numbers


def _parameters_are(case: Case, values: list[Any], **bent: Any) -> bool:
    """Return whether the parameters match this mistake and not the right count."""
    return values[0]["parameters"] == _parameters(case, **bent) != expected(case)["parameters"]


def _times(case: Case, values: list[Any], name: str) -> float:
    """Return how many times too large a number is."""
    return values[0][name] / expected(case)[name]


def _near(one: float, other: float) -> bool:
    return abs(one - other) < 1e-6 * abs(other)


def counts_numbers(case: Case, values: list[Any]) -> bool:
    """You count numbers, but the exercise asks for bytes: each number takes `bytes_each` of them."""
    each = case.inputs["sizes"]["bytes_each"]
    return all(_near(_times(case, values, name), 1 / each) for name in NAMES)


def four_bytes_for_adam(case: Case, values: list[Any]) -> bool:
    """Adam's numbers have 4 bytes in your count, whatever `bytes_each` says. Mixed precision often does it that way,
    but here every number has `bytes_each` bytes, including Adam's.
    """
    each, right = case.inputs["sizes"]["bytes_each"], expected(case)
    others = all(values[0][name] == right[name] for name in NAMES if name != "optimizer")
    return each != 4 and others and _near(_times(case, values, "optimizer"), 4 / each)


def always_four_bytes(case: Case, values: list[Any]) -> bool:
    """You count 4 bytes per number, whatever `bytes_each` says. That is float32; bfloat16 has 2."""
    each = case.inputs["sizes"]["bytes_each"]
    return each != 4 and any(_near(_times(case, values, name), 4 / each) for name in NAMES)


def one_gate(case: Case, values: list[Any]) -> bool:
    """These are the parameters of a plain recurrent layer. An LSTM has four such sets: three gates and the new
    content.
    """
    return _parameters_are(case, values, gates=1)


def three_gates(case: Case, values: list[Any]) -> bool:
    """You count three sets of weights, one for each gate. The new content has a set, too, which makes four."""
    return _parameters_are(case, values, gates=3)


def a_single_bias(case: Case, values: list[Any]) -> bool:
    """PyTorch has two biases for each gate, one for each matrix: 2H, not H."""
    return _parameters_are(case, values, biases=1)


def no_bias(case: Case, values: list[Any]) -> bool:
    """The biases are missing: two for each gate, one for each matrix."""
    return _parameters_are(case, values, biases=0)


def no_hidden_weights(case: Case, values: list[Any]) -> bool:
    """The weights that the hidden state is multiplied by are missing: (4 hidden, hidden) in each layer."""
    return _parameters_are(case, values, squares=0)


def all_layers_alike(case: Case, values: list[Any]) -> bool:
    """You give every layer `hidden` inputs. The first one reads the *features*: its input weights are
    `features` wide.
    """
    return _parameters_are(case, values, width="hidden")


def features_everywhere(case: Case, values: list[Any]) -> bool:
    """You give every layer `features` inputs. Only the first one reads them: the others read the outputs of the layer
    below, `hidden` numbers.
    """
    return _parameters_are(case, values, width="everywhere")


def one_layer_of_parameters(case: Case, values: list[Any]) -> bool:
    """These are the parameters of the first layer only."""
    sizes = case.inputs["sizes"]
    first = Case(case.part, 1, {"sizes": sizes | {"layers": 1}}, "")
    return sizes["layers"] > 1 and values[0]["parameters"] == _parameters(first)


def other_gradients(case: Case, values: list[Any]) -> bool:
    """There is one gradient for each parameter, so the gradients take as many bytes as the parameters, whatever the
    batch.
    """
    return values[0]["gradients"] != values[0]["parameters"] == expected(case)["parameters"]


def _optimizer_is(times: int, words: str) -> Symptom:
    return says(words)(lambda case, values: values[0]["optimizer"] == times * values[0]["parameters"])


def _activations_are(factor: Callable[[dict[str, int]], float], words: str) -> Symptom:
    def symptom(case: Case, values: list[Any]) -> bool:
        wrong = factor(case.inputs["sizes"])
        return wrong != 1 and _near(_times(case, values, "activations"), wrong)

    return says(words)(symptom)


def counts_adams_steps(case: Case, values: list[Any]) -> bool:
    """You count Adam's steps, too, 4 bytes for each tensor. The lesson's formula leaves them out: two numbers per
    parameter.
    """
    return values[0]["optimizer"] == expected(case)["optimizer"] + 4 * 4 * case.inputs["sizes"]["layers"]


def _seven(other: int, what: str) -> Symptom:
    words = f"You count {what} for each hidden unit and step. For the backward pass, autograd needs seven numbers: "
    return _activations_are(lambda _: other / 7, words + "the three gates, the new content, c, tanh c and h.")


EXERCISE = Exercise(
    **texts("01.3"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        counts_numbers,
        four_bytes_for_adam,
        always_four_bytes,
        one_gate,
        three_gates,
        a_single_bias,
        no_bias,
        no_hidden_weights,
        all_layers_alike,
        features_everywhere,
        one_layer_of_parameters,
        other_gradients,
        _optimizer_is(
            1,
            "Adam keeps two numbers per parameter: the mean of its gradients, and the mean of their squares. One is "
            "what momentum needs.",
        ),
        _optimizer_is(
            3,
            "Adam keeps two numbers per parameter, besides the parameter and its gradient, which are counted already.",
        ),
        counts_adams_steps,
        _activations_are(
            lambda sizes: 1 + sizes["features"] / (7 * sizes["hidden"] * sizes["layers"]),
            "The batch itself is in your count, `features` numbers for each step and sequence. It exists before the "
            "forward pass, and is not counted here.",
        ),
        _seven(1, "one number, the output,"),
        _seven(2, "two numbers, h and c,"),
        _seven(4, "four numbers, the gates,"),
        _seven(5, "five numbers"),
        _seven(6, "six numbers"),
        _seven(8, "eight numbers"),
        _activations_are(
            lambda sizes: 1 / sizes["steps"],
            "The activations of one step are too few: those of *all* steps must be in memory when the backward pass "
            "begins.",
        ),
        _activations_are(
            lambda sizes: 1 / sizes["layers"],
            "The activations of one layer are too few: every layer keeps its own until the backward pass reaches it.",
        ),
        _activations_are(
            lambda sizes: 1 / sizes["sequences"],
            "The activations of one sequence are too few: every sequence of the batch keeps its own.",
        ),
    ),
)
