"""10.1 Convert the weights: the check, and the common mistakes it recognizes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, differs, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import CHANGES_WHAT_IT_WAS_GIVEN, observed, says

OURS = "ifco"  # PyTorch's order of the gates; its g goes by Keras's name, c
NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
Arrays = list[Tensor]  # kernel, recurrent kernel and bias
Convert = Callable[[Arrays, str], dict[str, Tensor]]


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, gates: str, features: int, hidden: int) -> Case:
        shapes = {"kernel": (features, 4 * hidden), "recurrent_kernel": (hidden, 4 * hidden), "bias": (4 * hidden,)}
        arrays = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
        sequences = torch.randn(3, 4, features, generator=generator, dtype=torch.float64)
        says = f"gates {gates!r}, {features} features, {hidden} hidden units"
        return Case(part, 1, arrays | {"gates": gates, "sequences": sequences}, says)

    return [
        case("Keras's order", OURS, 1, 1),
        case("Keras's order", OURS, 3, 2),
        case("Keras's order", OURS, 8, 2),  # 8 = 4 x 2: the untransposed kernel has the right shape
        case("Keras's order", OURS, 2, 5),
        case("any order", "icfo", 1, 1),
        case("any order", "iofc", 2, 1),
        case("any order", "fico", 3, 2),
        case("any order", "ocfi", 4, 3),
        case("any order", "cofi", 2, 4),
    ]


def drive(
    answer: Callable, kernel: Tensor, recurrent_kernel: Tensor, bias: Tensor, gates: str, sequences: Tensor
) -> dict:
    given = kernel.clone(), recurrent_kernel.clone(), bias.clone()
    weights = answer(*given, gates)
    changed = not all(map(torch.equal, given, (kernel, recurrent_kernel, bias)))
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    layer = nn.LSTM(sequences.shape[-1], recurrent_kernel.shape[0], batch_first=True).double()
    fits = shapes == {name: list(weight.shape) for name, weight in layer.state_dict().items()}
    if fits:
        layer.load_state_dict(weights)
    return {"shapes": shapes, "outputs": layer(sequences)[0].detach() if fits else None, "changed": changed}


def judge(case: Case, values: list) -> str | None:
    shapes, outputs = values[0]["shapes"], values[0]["outputs"]
    right = {name: list(weight.shape) for name, weight in convert(_arrays(case), case.inputs["gates"]).items()}
    if set(shapes) != set(right):
        return f"the keys are {sorted(shapes)}, but should be {sorted(right)}"
    for name, shape in right.items():
        if shapes[name] != shape:
            return f"{name} has shape {tuple(shapes[name])}, but should have {tuple(shape)}"
    if difference := differs(outputs, _outputs(case, convert), "the LSTM's output"):
        return difference
    return "the outputs are right, but the call has changed the tensors it was given" if values[0]["changed"] else None


def _arrays(case: Case) -> Arrays:
    return [case.inputs[name] for name in ("kernel", "recurrent_kernel", "bias")]


def _outputs(case: Case, way: Convert) -> Tensor:
    """Return the outputs of PyTorch's LSTM with the weights that `way` converts."""
    sequences = case.inputs["sequences"]
    layer = nn.LSTM(sequences.shape[-1], len(case.inputs["recurrent_kernel"]), batch_first=True).double()
    layer.load_state_dict(way(_arrays(case), case.inputs["gates"]))
    return layer(sequences)[0].detach()


def convert(arrays: Arrays, gates: str, ordered: tuple[bool, bool, bool] = (True, True, True)) -> dict[str, Tensor]:
    """Return the weights for PyTorch; an array whose entry in `ordered` is False keeps the order of its gates."""
    places = [_in_our_order(array, gates) if want else array for array, want in zip(arrays, ordered, strict=True)]
    kernel, recurrent_kernel, bias = places
    return dict(zip(NAMES, (kernel.T, recurrent_kernel.T, bias, torch.zeros_like(bias)), strict=True))


def _in_our_order(array: Tensor, gates: str) -> Tensor:
    parts = dict(zip(gates, array.chunk(4, dim=-1), strict=True))
    return torch.cat([parts[gate] for gate in OURS], dim=-1)


def _shows(case: Case, values: list, *ways: Convert) -> bool:
    outputs = values[0]["outputs"]
    return outputs is not None and any(differs(outputs, _outputs(case, way)) is None for way in ways)


@observed
@says(CHANGES_WHAT_IT_WAS_GIVEN)
def changes_the_weights(case: Case, values: list) -> bool:
    return values[0]["changed"] and judge(case, [{**values[0], "changed": False}]) is None


@observed
def gates_as_wide_as_the_features(case: Case, values: list) -> bool:
    """You take a gate to be as wide as the inputs. The last dimension has four gates of `hidden` numbers each, and the
    *first* dimension of `kernel` has the features.
    """
    features, width = case.inputs["kernel"].shape
    rows = [shape[0] for shape in values[0]["shapes"].values()]
    return 4 * features != width and all(count in (width, 4 * features) for count in rows) and 4 * features in rows


def is_not_transposed(case: Case, values: list) -> bool:
    """Keras multiplies inputs by its kernel, (features, 4 hidden). PyTorch has it transposed: (4 hidden, features)."""
    pairs = (("weight_ih_l0", "kernel"), ("weight_hh_l0", "recurrent_kernel"))
    as_they_came = [values[0]["shapes"][name] == list(case.inputs[ours].shape) for name, ours in pairs]
    if case.inputs["kernel"].shape[0] != case.inputs["kernel"].shape[1]:
        return any(as_they_came)
    return _shows(case, values, lambda arrays, gates: convert([arrays[0].T, *arrays[1:]], gates))


def is_reshaped(case: Case, values: list) -> bool:
    """The shapes are right, but the numbers are in the wrong places: `reshape` and `view` keep the order in memory and
    do not transpose. Use `.T`.
    """

    def way(arrays: Arrays, gates: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        right = convert(arrays, gates)
        return right | {name: right[name].T.reshape(right[name].shape) for name in names}

    matrices = NAMES[:2]
    ways = [lambda arrays, gates, n=n: way(arrays, gates, n) for n in (matrices, matrices[:1], matrices[1:])]
    return _shows(case, values, *ways)


def has_the_bias_twice(case: Case, values: list) -> bool:
    """PyTorch adds its two biases: with Keras's bias in both of them, it counts twice. Put it into one and zeros into
    the other, or half into each.
    """
    return _shows(case, values, lambda arrays, gates: convert([*arrays[:2], 2 * arrays[2]], gates))


def has_no_bias(case: Case, values: list) -> bool:
    """The bias is lost: the outputs are those of a zero bias. Put it into one of PyTorch's two biases."""
    return _shows(case, values, lambda arrays, gates: convert([*arrays[:2], 0 * arrays[2]], gates))


def keeps_the_order(case: Case, values: list) -> bool:
    """The gates are in their original order. PyTorch's is i, f, g, o, where g is c: split the last dimension into four,
    label the parts by `gates`, and concatenate them in PyTorch's order.
    """
    return _shows(case, values, lambda arrays, gates: convert(arrays, OURS))


def orders_the_wrong_way(case: Case, values: list) -> bool:
    """You applied the inverse permutation: from PyTorch's order to the other. Part k of the input is the gate
    `gates[k]`; look for where each of i, f, c, o *is*.
    """

    def backwards(array: Tensor, gates: str) -> Tensor:
        parts = dict(zip(OURS, array.chunk(4, dim=-1), strict=True))
        return torch.cat([parts[gate] for gate in gates], dim=-1)

    return _shows(case, values, lambda arrays, gates: convert([backwards(each, gates) for each in arrays], OURS))


def orders_only_some(case: Case, values: list) -> bool:
    """Some are in PyTorch's order and some are not: the kernel, the recurrent kernel *and* the bias have four gates
    each, in the same order.
    """
    some = [(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)]
    ways = [lambda arrays, gates, s=s: convert(arrays, gates, s) for s in some if any(s) and not all(s)]
    return _shows(case, values, *ways)


def turns_no_gate(case: Case, values: list) -> bool:
    """Each gate's part of the recurrent kernel is in the right place, but not transposed: it is square, (hidden,
    hidden), so it fits either way. Transpose the whole kernel, then cut it, or transpose every part.
    """

    def way(arrays: Arrays, gates: str) -> dict[str, Tensor]:
        weights = convert(arrays, gates)
        return weights | {NAMES[1]: torch.cat([part.T for part in weights[NAMES[1]].chunk(4)])}

    return _shows(case, values, way)


def another_order(case: Case, values: list) -> bool:
    """The gates are in an order that is neither the one they came in nor PyTorch's, which is i, f, g, o, where g is c.
    `gates` may be any order: find each gate by its letter.
    """
    orders = map("".join, permutations(OURS))
    return _shows(
        case, values, *(lambda arrays, _, o=o: convert(arrays, o) for o in orders if o != case.inputs["gates"])
    )


def adds_one_to_the_forget_gate(case: Case, values: list) -> bool:
    """You add 1 to the forget gate's bias. A layer may *start* with that, but these weights are trained: convert them
    as they are.
    """

    def way(arrays: Arrays, gates: str) -> dict[str, Tensor]:
        *kernels, bias = arrays
        place = torch.arange(4).repeat_interleave(len(bias) // 4) == gates.index("f")
        return convert([*kernels, bias + place], gates)

    return _shows(case, values, way)


EXERCISE = Exercise(
    **texts("10.1"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        changes_the_weights,
        gates_as_wide_as_the_features,
        is_not_transposed,
        is_reshaped,
        has_the_bias_twice,
        has_no_bias,
        keeps_the_order,
        orders_the_wrong_way,
        orders_only_some,
        turns_no_gate,
        another_order,
        adds_one_to_the_forget_gate,
    ),
)
