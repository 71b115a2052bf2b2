"""12.2 Attention over two ranks: the check, and the common mistakes it recognizes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Cost, Exercise, differs, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import observed, over_budget

WEIGHTS = ("query", "key", "value", "out")
LEAVES = (*WEIGHTS, "inputs")


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(
        part: str, ranks: int, heads: int, head_width: int, steps: int, sequences: int = 2, residual: bool = False
    ) -> Case:
        width = ranks * heads * head_width
        shapes = dict.fromkeys(WEIGHTS, (width, width))
        shapes |= dict.fromkeys(("inputs", "slopes"), (steps, sequences, width))
        tensors = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
        own = f"{heads} head{'s' * (heads > 1)} of width {head_width} on each rank"
        says = f"{own}, {steps} step{'s' * (steps > 1)} of {sequences} sequence{'s' * (sequences > 1)}"
        says += ", and a loss of the inputs and the outputs together" * residual
        return Case(part, ranks, {"heads": heads, "residual": residual, **tensors}, says)

    return [
        case("one head on each rank", 2, 1, 2, 1, sequences=1),
        case("one head on each rank", 2, 1, 2, 3),
        case("one head on each rank", 3, 1, 4, 5),
        case("several heads", 2, 2, 2, 4),
        case("several heads", 2, 3, 4, 6, sequences=3),
        case("several heads", 3, 2, 3, 5),
        case("several heads", 2, 3, 2, 3, residual=True),
        case("several heads", 3, 2, 3, 4, residual=True),
    ]


def own_part(whole: dict[str, Tensor], rank: int, ranks: int) -> list[Tensor]:
    """Return one rank's heads: rows of query, key and value, columns of out."""
    rows = [whole[name].chunk(ranks)[rank] for name in WEIGHTS[:3]]
    return [*rows, whole["out"].chunk(ranks, dim=1)[rank]]


def own_rows(whole: Tensor, rank: int, ranks: int) -> Tensor:
    """Return a weight with one rank's rows, and zeros in place of the others' rows."""
    parts = enumerate(whole.chunk(ranks))
    return torch.cat([part if place == rank else torch.zeros_like(part) for place, part in parts])


def own_columns(whole: Tensor, rank: int, ranks: int) -> Tensor:
    """Return a weight with one rank's columns, and zeros in place of the others' columns."""
    return own_rows(whole.T, rank, ranks).T


def drive(answer, heads: int, residual: bool, inputs: Tensor, slopes: Tensor, **weights: Tensor):
    """Run the forward pass, then the backward pass from the same loss on every rank."""
    from course_lib.core.metering import meter

    own = own_part(weights, dist.get_rank(), dist.get_world_size())
    leaves = [tensor.clone().requires_grad_() for tensor in (*own, inputs)]
    with meter() as forward:
        outputs = answer(leaves[-1], *leaves[:-1], heads)
    with meter() as backward:
        if isinstance(outputs, Tensor) and outputs.requires_grad and outputs.shape == slopes.shape:
            ((outputs + leaves[-1] if residual else outputs) * slopes).sum().backward()
    return {
        "outputs": outputs,
        "gradients": [leaf.grad for leaf in leaves],
        "calls": [sum(spent.calls.values()) + spent.messages for spent in (forward, backward)],
    }


def attention(case: Case, *, hidden: str = "later", scale: str = "head", heads_as: str = "rows") -> Tensor:
    """Return each rank's part of the outputs, stacked: their sum is the whole. Each option makes a common mistake."""
    given, heads = case.inputs, case.inputs["heads"]
    parts = []
    for rank in range(case.ranks):
        query, key, value, out = own_part(given, rank, case.ranks)
        shape = {"rows": (heads, -1), "one": (1, -1), "strides": (-1, heads)}[heads_as]
        split = [(given["inputs"] @ weight.T).unflatten(-1, shape) for weight in (query, key, value)]
        split = [(each.mT if heads_as == "strides" else each).permute(1, 2, 0, 3) for each in split]
        head_width, width = split[0].shape[-1], given["inputs"].shape[-1]
        factor = {"head": head_width, "width": width, "own": head_width * heads, "square": head_width**2, "none": 1}
        scores = split[0] @ split[1].mT * factor[scale] ** -0.5
        everything = torch.ones(scores.shape[-2:], dtype=torch.bool)
        mask = {"later": everything.triu(1), "earlier": everything.tril(-1), "none": ~everything}[hidden]
        scores = scores.masked_fill(mask, float("-inf"))
        parts.append((scores.softmax(-1) @ split[2]).permute(2, 0, 1, 3).flatten(-2) @ out.T)
    return torch.stack(parts)


def expected(case: Case) -> list[dict[str, Any]]:
    leaves = {name: case.inputs[name].clone().requires_grad_() for name in LEAVES}
    outputs = attention(Case(case.part, case.ranks, case.inputs | leaves, case.says)).sum(0)
    ((outputs + leaves["inputs"] * case.inputs["residual"]) * case.inputs["slopes"]).sum().backward()
    whole = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return [
        {"outputs": outputs.detach(), "gradients": [*own_part(whole, rank, case.ranks), whole["inputs"]]}
        for rank in range(case.ranks)
    ]


def judge(case: Case, values: list) -> str | None:
    right = expected(case)
    for rank, (value, one) in enumerate(zip(values, right, strict=True)):
        if difference := differs(value["outputs"], one["outputs"], "the output"):
            return f"rank {rank}: {difference}"
    for rank, (value, one) in enumerate(zip(values, right, strict=True)):
        for name, gradient, right_one in zip(LEAVES, value["gradients"], one["gradients"], strict=True):
            if difference := differs(gradient, right_one, f"the gradient of {name}"):
                return f"rank {rank}: {difference}"
    return None


def costs(case: Case, values: list) -> list[Cost]:
    forward, backward = (max(value["calls"][place] for value in values) for place in (0, 1))
    return [Cost("collectives forward", forward, 1, 1), Cost("collectives backward", backward, 1, 1)]


def _outputs_are(values: list, right: list[Tensor]) -> bool:
    return all(differs(value["outputs"], one) is None for value, one in zip(values, right, strict=True))


def _is_one_of(case: Case, values: list, **mistake: Any) -> bool:
    """Return whether the outputs are those of attention with this mistake, and not the right ones."""
    wrong = attention(case, **mistake)
    if differs(wrong.sum(0), attention(case).sum(0)) is None:
        return False
    return _outputs_are(values, [wrong.sum(0)] * case.ranks) or _outputs_are(values, list(wrong))


@observed
def has_the_wrong_shape(case: Case, values: list) -> bool:
    """The outputs don't have the shape of the inputs, (steps, sequences, width). The ranks' heads are parts of a *sum*:
    each rank multiplies by its columns of `out`, which already gives full rows, and those are added up.
    """
    return any(
        isinstance(value["outputs"], Tensor) and value["outputs"].shape != case.inputs["slopes"].shape
        for value in values
    )


def only_its_own_heads(case: Case, values: list) -> bool:
    """The outputs are each rank's own part. The whole is the sum over the ranks' heads: one all-reduce is missing."""
    return _outputs_are(values, list(attention(case)))


def the_mean_of_the_heads(case: Case, values: list) -> bool:
    """This is the mean over the ranks. The heads' parts are added up, not averaged: each has its columns of `out`."""
    return _outputs_are(values, [attention(case).mean(0)] * case.ranks)


def looks_ahead(case: Case, values: list) -> bool:
    """These are the outputs of attention that looks ahead: each step may use only its own and earlier steps. Mask the
    scores of later steps before the softmax.
    """
    return _is_one_of(case, values, hidden="none")


def masks_the_wrong_steps(case: Case, values: list) -> bool:
    """Your mask hides the *earlier* steps, and lets each step look ahead. Turn it around: rows are queries, columns are
    keys, and a key that comes after its query is hidden.
    """
    return _is_one_of(case, values, hidden="earlier")


def mixes_the_heads_up(case: Case, values: list) -> bool:
    """The heads are taken apart in the wrong order. A head's numbers lie next to each other: split the rank's own width
    into (heads, head width), not into (head width, heads).
    """
    return case.inputs["heads"] > 1 and _is_one_of(case, values, heads_as="strides")


def scales_without_a_root(case: Case, values: list) -> bool:
    """The scores are divided by the head's width. Divide by its square root."""
    return _is_one_of(case, values, scale="square")


def scales_by_the_width(case: Case, values: list) -> bool:
    """The scores are divided by the square root of the whole width, or of all the rank's heads together. Each head is a
    separate attention: divide by the square root of the *head's* width.
    """
    return any(_is_one_of(case, values, scale=scale) for scale in ("width", "own"))


def does_not_scale(case: Case, values: list) -> bool:
    """The scores are not scaled: divide them by the square root of the head's width."""
    return _is_one_of(case, values, scale="none")


def one_large_head(case: Case, values: list) -> bool:
    """You treat all of the rank's heads as one. Each head has its own softmax: give the heads a separate dimension
    before you multiply queries and keys.
    """
    return case.inputs["heads"] > 1 and _is_one_of(case, values, heads_as="one")


def _wrong_backward(case: Case, values: list) -> bool:
    """Return whether the outputs are right, but some gradient is not."""
    right = [one["outputs"] for one in expected(case)]
    return _outputs_are(values, right) and judge(case, values) is not None


@observed
def no_gradient(case: Case, values: list) -> bool:
    """The outputs are right, but no weight gets a gradient: it does not come back through your sum. Autograd knows
    nothing about messages: write the sum as a `torch.autograd.Function` and define its backward pass.
    """
    weights = [each for value in values for each in value["gradients"][: len(WEIGHTS)]]
    return _wrong_backward(case, values) and all(each is None for each in weights)


@observed
def some_get_no_gradient(case: Case, values: list) -> bool:
    """The outputs are right, and gradients come back through your sum, but not to all of the weights and the inputs:
    something cuts one of them off, as `detach()`, `.data` and a backward that returns None do.
    """
    return _wrong_backward(case, values) and any(each is None for value in values for each in value["gradients"])


def _times(case: Case, values: list, factor: float, places: slice) -> bool:
    pairs = zip(values, expected(case), strict=True)
    return all(
        differs(ours, factor * theirs) is None
        for value, one in pairs
        for ours, theirs in zip(value["gradients"][places], one["gradients"][places], strict=True)
    )


def forgot_the_inputs(case: Case, values: list) -> bool:
    """The weights' gradients are right. The gradient of `inputs` is only the part from this rank's own heads: every
    rank uses all inputs, so their gradient is a sum over the ranks.
    """
    if not _wrong_backward(case, values) or not _times(case, values, 1, slice(0, 4)):
        return False
    parts = [value["gradients"][-1] for value in values]
    if differs(parts[0], parts[1]) is None:
        return False
    return differs(torch.stack(parts).sum(0), expected(case)[0]["gradients"][-1]) is None


def summed_on_the_way_back(case: Case, values: list) -> bool:
    """The weights' gradients are too large by a factor of the number of ranks: the gradient of the outputs is already
    the same on every rank, and you sum it once more. Where the forward pass sums, the backward pass does nothing.
    """
    return _wrong_backward(case, values) and _times(case, values, case.ranks, slice(0, 4))


def averaged_on_the_way_back(case: Case, values: list) -> bool:
    """A gradient is too small by a factor of the number of ranks: it was averaged, or divided. The outputs are a sum
    over ranks, and nothing in them was divided, so nothing is divided on the way back.
    """
    wrong = _wrong_backward(case, values)
    return wrong and any(_times(case, values, 1 / case.ranks, places) for places in (slice(0, 4), slice(4, 5)))


def summed_the_inputs_twice(case: Case, values: list) -> bool:
    """The weights' gradients are right. That of `inputs` is too large by a factor of the number of ranks: it was
    already a sum over the ranks when you summed it again.
    """
    wrong = _wrong_backward(case, values) and _times(case, values, 1, slice(0, 4))
    return wrong and _times(case, values, case.ranks, slice(4, 5))


def summed_what_came_another_way(case: Case, values: list) -> bool:
    """The gradient of `inputs` is right if only your function uses them. Here the loss uses them, too, and you sum that
    part of the gradient over the ranks as well, although it is already complete: a hook on `inputs` sees all of their
    gradient. Sum only what comes back through your function: use a hook on a view of `inputs`, or a
    `torch.autograd.Function`.
    """
    if not case.inputs["residual"] or not _wrong_backward(case, values):
        return False
    more = (case.ranks - 1) * case.inputs["slopes"]
    return all(
        differs(value["gradients"][-1], one["gradients"][-1] + more) is None
        for value, one in zip(values, expected(case), strict=True)
    )


def sent_more_often(case: Case, values: list) -> bool:
    """The numbers are right, with more collectives than needed: one sum of the outputs forward, and one sum of the
    inputs' gradient backward. Use the inputs once for queries, keys and values together.
    """
    return over_budget(judge, costs, case, values)


EXERCISE = Exercise(
    **texts("12.2"),
    cases=cases,
    drive=drive,
    judge=judge,
    costs=costs,
    private={"query": own_rows, "key": own_rows, "value": own_rows, "out": own_columns},
    symptoms=(
        has_the_wrong_shape,
        only_its_own_heads,
        the_mean_of_the_heads,
        one_large_head,
        mixes_the_heads_up,
        looks_ahead,
        masks_the_wrong_steps,
        scales_without_a_root,
        scales_by_the_width,
        does_not_scale,
        no_gradient,
        some_get_no_gradient,
        forgot_the_inputs,
        averaged_on_the_way_back,
        summed_on_the_way_back,
        summed_the_inputs_twice,
        summed_what_came_another_way,
        sent_more_often,
    ),
)
