"""Exercises of lesson 01, one device: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.model import SequenceModel, detached, lstm_model

# 01.1 -----------------------------------------------------------------------------------------------------------------


def step_cases(seed: int) -> list[Case]:
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


def drive_step(answer, inputs: Tensor, hidden: Tensor, cell: Tensor, weights: dict[str, Tensor]):
    return dict(answer(inputs, hidden, cell, **weights))


def right_step(case: Case) -> list:
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
    return _state(_gates(inputs, hidden, **weights | {"bias_hh": torch.zeros_like(weights["bias_hh"])}), cell)


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


STEP = Exercise(
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
    cases=step_cases,
    drive=drive_step,
    judge=same_as(right_step),
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

# 01.2 -----------------------------------------------------------------------------------------------------------------


def window_cases(seed: int) -> list[Case]:
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


def drive_windows(answer, weights: dict[str, Tensor], windows: list):
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


def right_windows(case: Case) -> list:
    def carried(model, optimizer, windows):
        losses, states = [], {}
        for inputs, targets in windows:
            outputs, states = model(inputs, detached(states))
            losses.append(_update(optimizer, outputs, targets))
        return losses, detached(states)

    return [drive_windows(carried, **case.inputs)]


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
    losses, states, total = [], {}, 0.0
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
        outputs, states = model(inputs, detached(states))
        loss = (outputs - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, states


WINDOWS = Exercise(
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
        "`course_lib.model.detached(states)` cuts every h and c from the graph that made them.",
    ),
    cases=window_cases,
    drive=drive_windows,
    judge=same_as(right_windows),
    mistakes=(
        begins_anew,
        keeps_the_history,
        retains_the_graph,
        carries_h_alone,
        updates_once,
        never_zeroes,
    ),
)

# 01.3 -----------------------------------------------------------------------------------------------------------------


def memory_cases(seed: int) -> list[Case]:
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


def drive_memory(answer, sizes: dict[str, int]):
    return dict(answer(**sizes))


def right_memory(case: Case) -> list:
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


MEMORY = Exercise(
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
    cases=memory_cases,
    drive=drive_memory,
    judge=same_as(right_memory),
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

EXERCISES = (STEP, WINDOWS, MEMORY)
