"""01.1 One step back: the check, and the wrong answers it recognizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_lib.checks.exercise import Case, Cost, Exercise, differs, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import Symptom, observed, over_budget, says

SUMS, STATE, WEIGHTS = "to the sums", "to the inputs and the state", "to the weights"
JUDGED = {SUMS: ("sums", "cell"), STATE: ("sums", "cell", "inputs", "hidden")}
JUDGED[WEIGHTS] = (*JUDGED[STATE], "weight_ih", "weight_hh", "bias_ih", "bias_hh")
GATES = ("enter", "forget", "new", "leave")


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, sequences: int, features: int, hidden: int, only: str = "", says: str = "") -> Case:
        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        given = {"inputs": random(sequences, features)}
        given |= {name: random(sequences, hidden) for name in ("hidden", "cell", "grad_hidden", "grad_cell")}
        given |= {"weight_ih": random(4 * hidden, features), "weight_hh": random(4 * hidden, hidden)}
        given |= {name: random(4 * hidden) for name in ("bias_ih", "bias_hh")}
        for name in ("grad_hidden", "grad_cell"):
            given[name] *= only in ("", name)
        sizes = (f"{sequences} sequence", f"{features} feature", f"{hidden} hidden unit")
        return Case(part, 1, {"given": given}, ", ".join(s if s[:2] == "1 " else f"{s}s" for s in sizes) + says)

    return [
        case(SUMS, 1, 1, 1, only="grad_hidden", says=", `grad_cell` 0"),
        case(SUMS, 1, 1, 1, only="grad_cell", says=", `grad_hidden` 0"),
        case(SUMS, 1, 1, 2),
        case(SUMS, 3, 2, 4),
        case(STATE, 1, 2, 3),
        case(STATE, 3, 4, 2),
        case(WEIGHTS, 1, 2, 3),
        case(WEIGHTS, 3, 4, 2),
        case(WEIGHTS, 4, 1, 4),
    ]


def drive(answer, given: dict[str, Tensor]):
    """Return what the answer returned, how often it used autograd, and which arguments it changed."""
    from torch.autograd import forward_ad

    from course_lib.core.metering import Spent, meter

    enter, forwards, made, spent = forward_ad.enter_dual_level, 0, None, Spent()

    def counted_enter():
        nonlocal forwards
        forwards += 1
        return enter()

    arguments = {name: tensor.clone() for name, tensor in given.items()}
    forward_ad.enter_dual_level = counted_enter
    try:
        with meter() as spent:
            made = answer(**arguments)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):  # the meter's hooks, which `torch.func.vjp` refuses
            raise
        forwards += 1
    finally:
        forward_ad.enter_dual_level = enter
    changed = [name for name, tensor in arguments.items() if not torch.equal(tensor, given[name])]
    return {"made": made, "asked": spent.backwards + forwards, "kept": spent.saved_bytes, "changed": changed}


def judge(case: Case, values: list[Any]) -> str | None:
    made, right = values[0]["made"], expected(case)
    if made is None:
        return "it uses autograd to compute the gradients" if values[0]["asked"] else "it returns nothing"
    for name in JUDGED[case.part]:
        if name not in made:
            return f"the dict that it returns has no {name!r}"
        difference = differs(made[name], right[name], f"gradient of {name!r}")
        if difference:
            return difference
    changed = values[0]["changed"]
    return f"it changed its arguments {', '.join(changed)}" if changed else None


def costs(case: Case, values: list[Any]) -> list[Cost]:
    calls = [Cost("calls of autograd", values[0]["asked"], 0)] if values[0]["asked"] else []
    return [*calls, Cost("bytes that autograd kept", values[0]["kept"], 0)]


def expected(case: Case) -> dict[str, Tensor]:
    """Return the gradients, computed by autograd."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in case.inputs["given"].items()}
    sums = leaves["inputs"] @ leaves["weight_ih"].T + leaves["bias_ih"]
    sums = sums + leaves["hidden"] @ leaves["weight_hh"].T + leaves["bias_hh"]
    enter, forget, new, leave = sums.chunk(4, dim=-1)
    cell = forget.sigmoid() * leaves["cell"] + enter.sigmoid() * new.tanh()
    loss = (leave.sigmoid() * cell.tanh() * leaves["grad_hidden"]).sum() + (cell * leaves["grad_cell"]).sum()
    names = [name for name in leaves if not name.startswith("grad_")]
    return dict(
        zip(["sums", *names], torch.autograd.grad(loss, [sums, *(leaves[name] for name in names)]), strict=True)
    )


def _back(
    case: Case,
    *,
    through: str = "both",
    tanh_slope: str = "square",
    slopes: bool = True,
    old: bool = False,
    biases: tuple[str, ...] = ("bias_ih", "bias_hh"),
):
    """Return the gradients of the sums and the old cell, computed by hand; each keyword introduces one mistake."""
    given = case.inputs["given"]
    sums = given["inputs"] @ given["weight_ih"].T + given["hidden"] @ given["weight_hh"].T
    enter, forget, new, leave = (sums + sum(given[name] for name in biases)).chunk(4, dim=-1)
    enter, forget, new, leave = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    shown = (given["cell"] if old else forget * given["cell"] + enter * new).tanh()
    slope = {"square": 1 - shown**2, "none": 1, "not squared": 1 - shown, "of hidden": 1 - (leave * shown) ** 2}[
        tanh_slope
    ]
    by_hidden = given["grad_hidden"] * leave * slope
    whole = {"both": by_hidden + given["grad_cell"], "hidden": by_hidden, "cell": given["grad_cell"]}[through]
    gates = [whole * new, whole * given["cell"], whole * enter, given["grad_hidden"] * shown]
    if slopes:
        own = [enter * (1 - enter), forget * (1 - forget), 1 - new**2, leave * (1 - leave)]
        gates = [gate * each for gate, each in zip(gates, own, strict=True)]
    return {"sums": torch.cat(gates, dim=-1), "cell": whole * forget}


def _is(case: Case, values: list[Any], **bent: Any) -> bool:
    """Return whether the gradients of the sums and the old cell match this mistake."""
    made = values[0]["made"]
    return differs({name: made[name] for name in ("sums", "cell")}, _back(case, **bent)) is None


@observed
def by_autograd(case: Case, values: list[Any]) -> bool:
    """You let autograd find the gradients, in one of its forms. Find them by hand: apply the chain rule backwards
    through the four lines of the step.
    """
    return bool(values[0]["asked"]) or over_budget(judge, costs, case, values)


@observed
def changes_an_argument(case: Case, values: list[Any]) -> bool:
    """You change a tensor that you were given, in place (`+=`, or a method whose name ends in an underscore), but the
    caller still needs its old values. Make a new tensor instead.
    """
    return bool(values[0]["changed"])


def forgets_grad_cell(case: Case, values: list[Any]) -> bool:
    """The gradient that arrives through the cell, `grad_cell`, is missing. The new cell is used twice, by `new_hidden`
    and by the next step: its gradient is the sum of both.
    """
    return _is(case, values, through="hidden")


def forgets_the_way_through_hidden(case: Case, values: list[Any]) -> bool:
    """The new cell has another use: `new_hidden = leave.sigmoid() * new_cell.tanh()`. Add the gradient from there to
    `grad_cell` before you continue to the gates.
    """
    return _is(case, values, through="cell")


def forgets_the_slope_of_tanh(case: Case, values: list[Any]) -> bool:
    """There is a `tanh` between `new_hidden` and the new cell, and you go back through it as if its slope were 1. Its
    slope is 1 - tanh².
    """
    return _is(case, values, tanh_slope="none")


def does_not_square(case: Case, values: list[Any]) -> bool:
    """The slope of `tanh` is 1 - tanh², but you take 1 - tanh."""
    return _is(case, values, tanh_slope="not squared")


def takes_hidden_for_the_tanh(case: Case, values: list[Any]) -> bool:
    """The slope of `tanh` is 1 - tanh², but you take 1 - `new_hidden`²: `new_hidden` is that tanh times the gate. Keep
    `new_cell.tanh()` itself.
    """
    return _is(case, values, tanh_slope="of hidden")


def has_other_biases(case: Case, values: list[Any]) -> bool:
    """You recompute the step with the wrong biases: one of the two is missing, or added twice. The sums include both
    `bias_ih` and `bias_hh`, once each.
    """
    both = ("bias_ih", "bias_hh")
    return any(_is(case, values, biases=biases) for name in both for biases in ((), (name,), (name, name)))


def stops_at_the_gates(case: Case, values: list[Any]) -> bool:
    """These are the gradients of the gates, but the sums are one step further back: multiply by the slopes of sigmoid,
    s (1 - s), and of tanh, 1 - t².
    """
    return _is(case, values, slopes=False)


def shows_the_old_cell(case: Case, values: list[Any]) -> bool:
    """You go back through `tanh` of the old cell, but `new_hidden` was made from the *new* cell: compute it first."""
    return _is(case, values, old=True)


def another_order(case: Case, values: list[Any]) -> bool:
    """The four parts of the gradient of the sums are right, but not in PyTorch's order, which is enter, forget, new,
    leave.
    """
    right, made = expected(case)["sums"].chunk(4, dim=-1), values[0]["made"]["sums"].chunk(4, dim=-1)
    places = [next(p for p, part in enumerate(right) if differs(each, part) is None) for each in made]
    return sorted(places) == [0, 1, 2, 3] != places


def mean_over_the_sequences(case: Case, values: list[Any]) -> bool:
    """Some gradients of weights or biases are means over the sequences. All sequences share these, so their gradients
    are *added up*; the mean, if there is one, is in the loss.
    """
    made, right, sequences = values[0]["made"], expected(case), len(case.inputs["given"]["inputs"])
    return sequences > 1 and any(
        differs(sequences * made[name], right[name]) is None
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )


@observed
def one_bias_for_each_sequence(case: Case, values: list[Any]) -> bool:
    """The biases' gradients have a row for each sequence. A bias is one vector that all sequences share: sum over the
    sequences.
    """
    made, rows = values[0]["made"], expected(case)["sums"].shape
    return any(made[name].shape == rows for name in ("bias_ih", "bias_hh"))


def half_for_each_bias(case: Case, values: list[Any]) -> bool:
    """You split the gradient between the two biases. Both are added to the same sum, so each gets all of it."""
    made, right = values[0]["made"], expected(case)
    return any(differs(2 * made[name], right[name]) is None for name in ("bias_ih", "bias_hh"))


def new_state(case: Case, values: list[Any]) -> bool:
    """What you return for "cell" is the new cell, from the forward pass. The exercise asks for the backward pass: how
    much the loss changes with each number that went in.
    """
    given = case.inputs["given"]
    sums = given["inputs"] @ given["weight_ih"].T + given["bias_ih"] + given["hidden"] @ given["weight_hh"].T
    enter, forget, new, _ = (sums + given["bias_hh"]).chunk(4, dim=-1)
    cell = forget.sigmoid() * given["cell"] + enter.sigmoid() * new.tanh()
    return differs(values[0]["made"]["cell"], cell) is None


def _only(gate: str, how: str) -> Symptom:
    """Return a symptom for the case in which only one of the four parts of the sums' gradient is wrong."""

    @observed
    @says(f'Only the *{gate}* part of the gradient of "sums" is wrong. {how}')
    def symptom(case: Case, values: list[Any]) -> bool:
        right, made = expected(case)["sums"].chunk(4, dim=-1), values[0]["made"]["sums"].chunk(4, dim=-1)
        wrong = [name for name, a, b in zip(GATES, made, right, strict=True) if differs(a, b)]
        return wrong == [gate]

    return symptom


EXERCISE = Exercise(
    **texts("01.1"),
    cases=cases,
    drive=drive,
    judge=judge,
    costs=costs,
    symptoms=(
        by_autograd,
        changes_an_argument,
        new_state,
        forgets_grad_cell,
        forgets_the_way_through_hidden,
        forgets_the_slope_of_tanh,
        does_not_square,
        takes_hidden_for_the_tanh,
        has_other_biases,
        stops_at_the_gates,
        shows_the_old_cell,
        another_order,
        _only(
            "enter", "It lets in the new content: the cell's gradient times `new.tanh()`, times its slope s (1 - s)."
        ),
        _only("forget", "It scales the *old* cell: the cell's gradient times `cell`, times its slope s (1 - s)."),
        _only(
            "new",
            "It passes through `enter`: the cell's gradient times `enter.sigmoid()`, times the slope of tanh, 1 - t².",
        ),
        _only("leave", "It lets out tanh of the *new* cell: `grad_hidden` times that, times its slope s (1 - s)."),
        mean_over_the_sequences,
        one_bias_for_each_sequence,
        half_for_each_bias,
    ),
)
