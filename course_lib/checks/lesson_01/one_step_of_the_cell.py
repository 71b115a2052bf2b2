"""01.1 One step of the cell: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, sequences: int, features: int, hidden: int, biases: bool, says: str) -> Case:
        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        weights = {"weight_ih": random(4 * hidden, features), "weight_hh": random(4 * hidden, hidden)}
        for name in ("bias_ih", "bias_hh"):
            weights[name] = random(4 * hidden) if biases else torch.zeros(4 * hidden, dtype=torch.float64)
        inputs = {"inputs": random(sequences, features), "weights": weights}
        inputs |= {name: random(sequences, hidden) for name in ("hidden", "cell")}
        return Case(part, 1, inputs, says)

    return [
        case("the gates", 1, 1, 1, False, "1 sequence, 1 feature, 1 hidden unit, biases of zero"),
        case("the gates", 1, 2, 2, True, "1 sequence, 2 features, 2 hidden units"),
        case("a batch", 3, 4, 2, True, "3 sequences, 4 features, 2 hidden units"),
    ]


def drive(answer, inputs: Tensor, hidden: Tensor, cell: Tensor, weights: dict[str, Tensor]):
    return dict(answer(inputs, hidden, cell, **weights))


def expected(case: Case) -> list:
    given, weights = case.inputs, case.inputs["weights"]
    lstm = nn.LSTMCell(given["inputs"].shape[1], given["hidden"].shape[1], dtype=torch.float64)
    lstm.load_state_dict(weights)
    with torch.no_grad():
        hidden, cell = lstm(given["inputs"], (given["hidden"], given["cell"]))
    return [_gates(given["inputs"], given["hidden"], **weights) | {"cell": cell, "hidden": hidden}]


def _gates(inputs, hidden, weight_ih, weight_hh, bias_ih, bias_hh, new=torch.tanh, order="enter forget new leave"):
    sums = inputs @ weight_ih.T + bias_ih + hidden @ weight_hh.T + bias_hh
    named = dict(zip(order.split(), sums.chunk(4, dim=-1), strict=True))
    return {name: new(named[name]) if name == "new" else named[name].sigmoid() for name in named}


def _state(gates, cell):
    cell = gates["forget"] * cell + gates["enter"] * gates["new"]
    return gates | {"cell": cell, "hidden": gates["leave"] * cell.tanh()}


def another_order(inputs, hidden, cell, **weights):
    """The gates come in another order than PyTorch's. Frameworks differ: in PyTorch the rows of the weights are the
    gates enter, forget, new, leave (`i`, `f`, `g`, `o` in its manual).
    """
    return _state(_gates(inputs, hidden, **weights, order="enter forget leave new"), cell)


def all_sigmoids(inputs, hidden, cell, **weights):
    """The new content goes through a sigmoid, like a gate, so that only positive numbers ever enter the cell. Gates are
    between 0 and 1; content is between -1 and 1: `tanh`.
    """
    return _state(_gates(inputs, hidden, **weights, new=torch.sigmoid), cell)


def forgets_what_it_should_keep(inputs, hidden, cell, **weights):
    """The old cell is multiplied by the gate *enter*, and the new content by *forget*: their places are changed. The
    forget gate says how much of the *old* cell stays.
    """
    gates = _gates(inputs, hidden, **weights)
    cell = gates["enter"] * cell + gates["forget"] * gates["new"]
    return gates | {"cell": cell, "hidden": gates["leave"] * cell.tanh()}


def shows_the_cell_itself(inputs, hidden, cell, **weights):
    """The hidden state is the gate times the cell as it is. It may be large: what is shown of it goes through `tanh`
    first.
    """
    made = _state(_gates(inputs, hidden, **weights), cell)
    return made | {"hidden": made["leave"] * made["cell"]}


def shows_the_old_cell(inputs, hidden, cell, **weights):
    """The hidden state shows the cell as it was before this step. It is the *new* cell that is shown."""
    made = _state(_gates(inputs, hidden, **weights), cell)
    return made | {"hidden": made["leave"] * cell.tanh()}


def one_bias(inputs, hidden, cell, **weights):
    """PyTorch has two biases, and both are added: one comes with the inputs, one with the hidden state. One would be
    enough for a model, but these weights have two.
    """
    weights["bias_hh"] = torch.zeros_like(weights["bias_hh"])
    return _state(_gates(inputs, hidden, **weights), cell)


def not_transposed(inputs, hidden, cell, weight_ih, weight_hh, bias_ih, bias_hh):
    """The shapes do not fit: the weights are (4 hidden, features) and (4 hidden, hidden), outputs first. Inputs of
    (sequences, features) are multiplied by the *transposed* weights.
    """
    return inputs @ weight_ih + hidden @ weight_hh


def reshapes(inputs, hidden, cell, **weights):
    """The shapes fit, because you have made them: `reshape` and `view` read the same numbers row by row, and mix the
    gates. Rows become columns by `.T`.
    """
    mixed = {name: weights[name].reshape(weights[name].T.shape).T for name in ("weight_ih", "weight_hh")}
    return _state(_gates(inputs, hidden, **weights | mixed), cell)


EXERCISE = Exercise(
    number="01.1",
    title="One step of the cell",
    answer="lstm_step",
    level="warm-up",
    minutes=10,
    parts={"the gates": 2, "a batch": 1},
    read="7 · The cell, by hand",
    hints=(
        "One sum for all four gates: the inputs by their weights, the hidden state by its weights, and two biases.",
        "`sums.chunk(4, dim=-1)` gives enter, forget, new, leave, in PyTorch's order. Which of them is not a gate, and "
        "may be negative?",
        "The cell keeps `forget` of its old content and takes `enter` of the new. The hidden state is `leave` of "
        "`tanh` of that.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        another_order,
        all_sigmoids,
        forgets_what_it_should_keep,
        shows_the_cell_itself,
        shows_the_old_cell,
        one_bias,
        not_transposed,
        reshapes,
    ),
)
