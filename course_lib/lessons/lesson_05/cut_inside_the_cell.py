"""05.3 Cut inside the cell: the check, and the wrong answers it recognizes."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Cost, Exercise, differs, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import observed, over_budget

GATES = 4
WEIGHTS = ("weight_ih", "weight_hh", "bias")
FORWARD = ("outputs", "c")
BACKWARD = (*WEIGHTS, "inputs")


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, hidden: int, steps: int, sequences: int = 2, width: int = 3) -> Case:
        shapes = {
            "weight_ih": (GATES * hidden, width),
            "weight_hh": (GATES * hidden, hidden),
            "bias": (GATES * hidden,),
            "inputs": (steps, sequences, width),
            "slopes": (steps, sequences, hidden),
        }
        inputs = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
        of = f"{sequences} sequence{'s' * (sequences > 1)}, {width} input{'s' * (width > 1)} each"
        says = f"{hidden} hidden units, {steps} step{'s' * (steps > 1)} of {of}"
        return Case(part, ranks, inputs, says)

    return [
        case("one step", 2, 2, 1, sequences=1, width=1),
        case("one step", 2, 4, 1),
        case("one step", 3, 6, 1),
        case("from step to step", 2, 2, 2, sequences=1, width=1),
        case("from step to step", 2, 16, 3),
        case("from step to step", 3, 12, 2, sequences=1),
        case("from step to step", 3, 15, 4, width=5),
    ]


def own_rows(whole: Tensor, rank: int, ranks: int) -> Tensor:
    """Return one rank's share of a weight: its rows of each gate, and zeros in place of the others' rows."""
    pieces = (piece for gate in whole.chunk(GATES) for piece in enumerate(gate.chunk(ranks)))
    return torch.cat([piece if place == rank else torch.zeros_like(piece) for place, piece in pieces])


def drive(answer, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, inputs: Tensor, slopes: Tensor):
    """Run the forward pass, then the backward pass from the same loss on every rank."""
    from course_lib.core.metering import meter

    own = [rows_of(whole, dist.get_rank(), dist.get_world_size()) for whole in (weight_ih, weight_hh, bias)]
    leaves = [tensor.clone().requires_grad_() for tensor in (*own, inputs)]
    with meter() as forward:
        outputs, c = answer(*leaves)
    with meter() as backward:
        if outputs.requires_grad and outputs.shape == slopes.shape:
            (outputs * slopes).sum().backward()
    return {
        "outputs": outputs,
        "c": c,
        "gradients": [leaf.grad for leaf in leaves],
        "calls": [sum(spent.calls.values()) + spent.messages for spent in (forward, backward)],
        "bytes": sum(sum({**s.payload, **s.sent_to}.values()) for s in (forward, backward)),
    }


def rows_of(whole: Tensor, rank: int, ranks: int) -> Tensor:
    """Return the rows of this rank's units, from each gate."""
    return torch.cat([gate.chunk(ranks)[rank] for gate in whole.chunk(GATES)])


def cell(gates: Tensor, c: Tensor, order: str = "ifgo") -> tuple[Tensor, Tensor]:
    """Return the next (h, c) of the units with these gates."""
    named = dict(zip(order, gates.chunk(GATES, dim=1), strict=True))
    c = named["f"].sigmoid() * c + named["i"].sigmoid() * named["g"].tanh()
    return named["o"].sigmoid() * c.tanh(), c


def expected(case: Case) -> list[dict[str, Any]]:
    leaves = [case.inputs[name].clone().requires_grad_() for name in BACKWARD]
    weight_ih, weight_hh, bias, inputs = leaves
    h = c = torch.zeros(inputs.shape[1], len(bias) // GATES, dtype=torch.float64)
    outputs = []
    for step in inputs:
        h, c = cell(step @ weight_ih.T + h @ weight_hh.T + bias, c)
        outputs.append(h)
    (torch.stack(outputs) * case.inputs["slopes"]).sum().backward()
    *whole, of_inputs = (leaf.grad for leaf in leaves)
    return [
        {
            "outputs": torch.stack(outputs).detach(),
            "c": c.detach().chunk(case.ranks, dim=1)[rank],
            "gradients": [*(rows_of(each, rank, case.ranks) for each in whole if each is not None), of_inputs],
        }
        for rank in range(case.ranks)
    ]


def judge(case: Case, values: list) -> str | None:
    for rank, (value, right) in enumerate(zip(values, expected(case), strict=True)):
        for name in FORWARD:
            difference = differs(value[name], right[name], name)
            if difference:
                return f"rank {rank}: {difference}"
    for rank, (value, right) in enumerate(zip(values, expected(case), strict=True)):
        for name, gradient, right_one in zip(BACKWARD, value["gradients"], right["gradients"], strict=True):
            difference = differs(gradient, right_one, f"the gradient of {name}")
            if difference:
                return f"rank {rank}: {difference}"
    return None


def costs(case: Case, values: list) -> list[Cost]:
    steps, sequences, width = case.inputs["inputs"].shape
    hidden = case.inputs["slopes"].shape[2]
    return [
        Cost("collectives forward", max(value["calls"][0] for value in values), steps),
        Cost("collectives backward", max(value["calls"][1] for value in values), steps * case.ranks + 1),
        Cost(
            "bytes that a rank puts in, forward and backward",
            max(value["bytes"] for value in values),
            8 * steps * sequences * (2 * hidden + width),
        ),
    ]


def has_gathered_the_weights(case: Case, values: list) -> bool:
    """The numbers are right, but there is no message per step in the forward pass, and yet a lot is sent: the weights,
    it seems, instead of h. Then every rank holds the whole layer, which was too large for one. Send only h, after every
    step.
    """
    own = sum(case.inputs[name].numel() for name in WEIGHTS) // case.ranks
    few = max(value["calls"][0] for value in values) <= len(WEIGHTS)
    return judge(case, values) is None and few and any(4 * own <= value["bytes"] for value in values)


def has_put_too_much_in(case: Case, values: list) -> bool:
    """The numbers are right, but a rank puts more into the collectives than is needed. Forward, a step needs h of the
    rank's own units, and nothing of c; backward, a step needs the gradient of h, and all steps together that of
    `inputs`, once.
    """
    return over_budget(judge, costs, case, values, 2)


def has_sent_more_often(case: Case, values: list) -> bool:
    """Forward, a step needs one collective: h is all that the other ranks need from it. Backward, add up the gradient
    of h once per step, and that of the inputs once in total.
    """
    return over_budget(judge, costs, case, values, 0, 1)


def has_gates_in_another_order(case: Case, values: list) -> bool:
    """You read the rows in a different order, as some libraries store them. PyTorch's rows are i, f, g, o."""
    weight_ih, weight_hh, bias, inputs = (case.inputs[name] for name in BACKWARD)
    for order in set(map("".join, permutations("ifgo"))) - {"ifgo"}:
        h = c = torch.zeros(inputs.shape[1], len(bias) // GATES, dtype=torch.float64)
        h, _ = cell(inputs[0] @ weight_ih.T + h @ weight_hh.T + bias, c, order)
        if all(differs(value["outputs"][0], h) is None for value in values):
            return True
    return False


@observed
def has_kept_h_to_itself(case: Case, values: list) -> bool:
    """The first step is right, and a later one is not. This is what you get if each rank's gates know only the h of its
    own units, but they need all of it: gather after *every* step.
    """
    right = expected(case)
    first = all(differs(v["outputs"][0], r["outputs"][0]) is None for v, r in zip(values, right, strict=True))
    return first and any(differs(v["outputs"], r["outputs"]) for v, r in zip(values, right, strict=True))


@observed
def has_only_its_own_units(case: Case, values: list) -> bool:
    """The outputs have only this rank's units, or the gathered h in the wrong dimension. The ranks have different
    *units* of the same sequences: put them side by side, in the last dimension.
    """
    return any(value["outputs"].shape != case.inputs["slopes"].shape for value in values)


@observed
def has_gathered_c(case: Case, values: list) -> bool:
    """You return all of c. A unit's c is used by that unit only, so each rank keeps the c of its own units: half of the
    state never has to be sent.
    """
    return any(value["c"].shape[-1] == case.inputs["slopes"].shape[2] for value in values)


def _is_wrong_backward(case: Case, values: list) -> bool:
    """Return whether the outputs are right but some gradient is not."""
    pairs = list(zip(values, expected(case), strict=True))
    forward = all(differs(value[name], right[name]) is None for name in FORWARD for value, right in pairs)
    return forward and judge(case, values) is not None


def _gradients_are_right(case: Case, values: list, names: tuple[str, ...]) -> bool:
    places = [BACKWARD.index(name) for name in names]
    pairs = list(zip(values, expected(case), strict=True))
    return all(differs(v["gradients"][place], r["gradients"][place]) is None for place in places for v, r in pairs)


@observed
def has_no_gradient(case: Case, values: list) -> bool:
    """The outputs are right, but no gradient comes back through them: autograd knows nothing about messages, and what
    `all_gather` fills in is a constant to it. Define the backward pass of your gather with a `torch.autograd.Function`.
    """
    return _is_wrong_backward(case, values) and all(gradient is None for v in values for gradient in v["gradients"])


def has_forgotten_the_inputs(case: Case, values: list) -> bool:
    """The weights' gradients are right. The gradient of `inputs` is only the part from this rank's own gates: every
    rank uses all inputs, so their gradient is a sum over the ranks.
    """
    if not _is_wrong_backward(case, values) or not _gradients_are_right(case, values, WEIGHTS):
        return False
    parts = torch.stack([value["gradients"][-1] for value in values])
    return differs(parts.sum(dim=0), expected(case)[0]["gradients"][-1]) is None


@observed
def has_wrong_gradient_of_the_inputs(case: Case, values: list) -> bool:
    """The weights' gradients are right, but that of `inputs` is not. Every rank's gates use all inputs, so their
    gradient is a sum over the ranks, taken once.
    """
    return _is_wrong_backward(case, values) and _gradients_are_right(case, values, WEIGHTS)


def has_counted_the_output_once_per_rank(case: Case, values: list) -> bool:
    """The outputs are right and the gradients too large: what comes back through the *outputs* is added up over the
    ranks, too. Every rank already has all of that. Only what comes through the next step's gates is spread over the
    ranks. (`all_gather` of `torch.distributed.nn` adds up all of it.)
    """
    return _is_wrong_backward(case, values) and _last_step_off_by(case, values, case.ranks)


def _last_step_off_by(case: Case, values: list, factor: float) -> bool:
    """Return whether the gradient of the last step's inputs, which no later step affects, is `factor` times too large.

    If the ranks have different gradients, each has only a part: their sum is compared.
    """
    right = expected(case)[0]["gradients"][-1][-1]
    each = [value["gradients"][-1] for value in values]
    if any(gradient is None for gradient in each):
        return False
    parts = torch.stack([gradient[-1] for gradient in each])
    kept = differs(parts, parts[:1].expand_as(parts)) is not None
    return differs(parts.sum(dim=0) if kept else parts[0], factor * right) is None


def has_not_summed_over_the_gates(case: Case, values: list) -> bool:
    """The gradient of the last step is right, but those of earlier ones are not. What comes back to h through the next
    step's gates is a sum over *all* ranks: its units contribute to every rank's gates. You get this if you use
    only this rank's part, a mean, or, with `detach`, nothing.
    """
    return _is_wrong_backward(case, values) and _last_step_off_by(case, values, 1.0)


EXERCISE = Exercise(
    **texts("05.3"),
    cases=cases,
    drive=drive,
    private={"weight_ih": own_rows, "weight_hh": own_rows, "bias": own_rows},
    judge=judge,
    costs=costs,
    symptoms=(
        has_only_its_own_units,
        has_gathered_c,
        has_gates_in_another_order,
        has_kept_h_to_itself,
        has_no_gradient,
        has_gathered_the_weights,
        has_put_too_much_in,
        has_sent_more_often,
        has_forgotten_the_inputs,
        has_wrong_gradient_of_the_inputs,
        has_counted_the_output_once_per_rank,
        has_not_summed_over_the_gates,
    ),
)
