"""06.4 Recompute a chunk: the check, and the common mistakes it recognizes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import torch
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Cost, Exercise, differs, draw, seeded
from course_lib.checks.texts import texts
from course_lib.core.metering import most_alive
from course_lib.lessons.symptoms import GRADIENT_OF_ONE_HALF, GRADIENT_STOPS, observed, over_budget, says

GRADIENTS, MEMORY = "the same gradients", "one chunk at a time"
HIDDEN = 2
SPARE = 1.5  # the budget, as a multiple of what our solution holds

State = tuple[Tensor, Tensor]
Cut = Callable[[Tensor, Tensor], State]  # what happens to the state between two chunks


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, steps: list[int], sequences: int = 2) -> Case:
        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        inputs = {
            "weights": [numbers(*parameter.shape) for parameter in nn.LSTM(HIDDEN, HIDDEN).parameters()],
            "chunks": [numbers(length, sequences, HIDDEN) for length in steps],
            "state": [numbers(1, sequences, HIDDEN) for _ in range(2)],
            "gradients": [numbers(length, sequences, HIDDEN) for length in steps],
            "counted": part == MEMORY,
        }
        chunks = "1 chunk" if len(steps) == 1 else f"{len(steps)} chunks"
        each = f"{steps[0]} step{'s' * (steps[0] > 1)}" + " each" * (len(steps) > 1)
        says = each if len(set(steps)) == 1 else f"{', '.join(map(str, steps))} steps"
        return Case(part, 1, inputs, f"{chunks} of {says}")

    def lengths(chance: Random) -> list[int]:
        return [chance.randint(1, 4) for _ in range(chance.randint(1, 6))]

    return [
        *(case(GRADIENTS, steps) for steps in ([2, 2], [3], [1, 3, 2], [1, 1, 1, 1], *draw(lengths, 4, seed))),
        case(MEMORY, [4] * 8, sequences=16),
        case(MEMORY, [3, 6, 6, 1, 6, 2, 6, 6], sequences=16),
    ]


def layer_of(weights: list[Tensor]) -> nn.LSTM:
    made = nn.LSTM(HIDDEN, HIDDEN).double()
    with torch.no_grad():
        for parameter, weight in zip(made.parameters(), weights, strict=True):
            parameter.copy_(weight)
    return made


def drive(answer, weights: list[Tensor], chunks: list[Tensor], state: list, gradients: list[Tensor], counted: bool):
    from course_lib.core.metering import meter

    layer, given = layer_of(weights), [*chunks, *state, *gradients]
    before = [tensor.clone() for tensor in given]
    with meter() as spent:
        if counted:
            (outputs, of_inputs, of_state), alive = most_alive(answer, layer, chunks, tuple(state), gradients)
        else:
            (outputs, of_inputs, of_state), alive = answer(layer, chunks, tuple(state), gradients), 0
    return {
        "outputs": outputs,
        "of_inputs": of_inputs,
        "of_state": of_state,
        "parameters": [parameter.grad for parameter in layer.parameters()],
        "changed": any(map(is_changed, given, before)),
        "alive": alive,
        "steps": sum(shape[0] for shape in spent.forwards.get("LSTM", []) if shape),
    }


def is_changed(tensor: Tensor, before: Tensor) -> bool:
    """Return whether a tensor has changed for its caller: it has different numbers, or takes part in autograd."""
    return tensor.requires_grad or tensor.grad is not None or not torch.equal(tensor, before)


def judge(case: Case, values: list) -> str | None:
    for name, right in one_process(case).items():
        difference = differs(values[0][name], right, name)
        if difference:
            return difference
    return "one of the tensors that it was given has changed" if values[0]["changed"] else None


def costs(case: Case, values: list) -> list[Cost]:
    if not case.inputs["counted"]:
        return []
    weights, chunks, state, gradients, _ = case.inputs.values()
    ours = most_alive(recomputed, layer_of(weights), chunks, tuple(state), gradients)[1]
    steps = sum(map(len, chunks))
    return [
        Cost("bytes of tensors alive at once", values[0]["alive"], SPARE * ours),
        Cost("steps that went through the layer", values[0]["steps"], 2 * steps),
    ]


def recomputed(layer: nn.LSTM, chunks: list[Tensor], state: State, gradients: list[Tensor], begins=None):
    """Return what our solution returns; `begins` replaces the states from which the chunks are recomputed."""
    outputs, kept, of_inputs, of_state = [], [], [], []
    with torch.no_grad():
        for chunk in chunks:
            kept.append(state)
            output, state = layer(chunk, state)
            outputs.append(output)
    for chunk, begin, gradient in zip(reversed(chunks), reversed(begins or kept), reversed(gradients), strict=True):
        inputs, begin = chunk.detach().requires_grad_(), [part.detach().requires_grad_() for part in begin]
        output, end = layer(inputs, tuple(begin))
        torch.autograd.backward([output, *end[: len(of_state)]], [gradient, *of_state])
        of_inputs.insert(0, inputs.grad)
        of_state = [part.grad for part in begin]
    return outputs, of_inputs, of_state


def one_process(case: Case, cut: Cut | None = None) -> dict:
    """Return the values from one graph over all chunks, with autograd for the backward pass."""
    weights, chunks, state, gradients, _ = case.inputs.values()
    layer, outputs, now = layer_of(weights), [], None
    inputs, begin = ([one.clone().requires_grad_() for one in given] for given in (chunks, state))
    for chunk in inputs:
        now = tuple(begin) if now is None else cut(*now) if cut else now
        output, now = layer(chunk, now)
        outputs.append(output)
    torch.autograd.backward(outputs, gradients)
    return {
        "outputs": [output.detach() for output in outputs],
        "of_inputs": [chunk.grad for chunk in inputs],
        "of_state": [part.grad for part in begin],
        "parameters": [parameter.grad for parameter in layer.parameters()],
    }


def has(values: list, wanted: dict, *names: str) -> bool:
    return all(differs(values[0][name], wanted[name]) is None for name in names)


def cuts_are(case: Case, values: list, cuts: list[Cut], name: str) -> bool:
    return len(case.inputs["chunks"]) > 1 and any(has(values, one_process(case, cut), name) for cut in cuts)


@observed
def changes_what_it_was_given(case: Case, values: list) -> bool:
    """You change a tensor that you were given: either you overwrite its numbers, or you make the caller's own tensor a
    leaf, so that later backward passes add to its `.grad`. Make your own leaf: `chunk.detach().requires_grad_()`.
    """
    return values[0]["changed"]


def begins_at_zero(case: Case, values: list) -> bool:
    """The sequence does not start at zero: it starts from `state`, which the caller passes in and whose gradient the
    caller wants back.
    """
    other = {**case.inputs, "state": [0 * part for part in case.inputs["state"]]}
    return has(values, one_process(Case(case.part, 1, other, case.says)), "outputs")


def forgets_the_state(case: Case, values: list) -> bool:
    """The LSTM forgets all or half of its state at the cuts. The pair (h, c) in which a chunk ends is the one from
    which the next chunk starts.
    """
    begin = case.inputs["state"]
    cuts: list[Cut] = [
        lambda h, c: (0 * h, 0 * c),
        lambda h, c: (begin[0], begin[1]),
        lambda h, c: (h, 0 * c),
        lambda h, c: (0 * h, c),
    ]
    return cuts_are(case, values, cuts, "outputs")


@says(GRADIENT_STOPS)
def gradient_stops(case: Case, values: list) -> bool:
    return cuts_are(case, values, [lambda h, c: (h.detach(), c.detach())], "parameters")


@says(GRADIENT_OF_ONE_HALF)
def gradient_of_one_half(case: Case, values: list) -> bool:
    return cuts_are(case, values, [lambda h, c: (h, c.detach()), lambda h, c: (h.detach(), c)], "parameters")


def recomputed_from_elsewhere(case: Case, values: list) -> bool:
    """In the backward pass, a chunk is recomputed from a different state than in the forward pass: from zero, from the
    initial state of the sequence, or from the chunk's final state. Save the state from which each chunk *started*.
    """
    weights, chunks, state, gradients, _ = case.inputs.values()
    layer, ends, now = layer_of(weights), [], tuple(state)
    with torch.no_grad():
        for chunk in chunks:
            now = layer(chunk, now)[1]
            ends.append(now)
    zeros = [0 * part for part in state]
    for begins in ([zeros] * len(chunks), [state] * len(chunks), ends, [ends[-1]] * len(chunks)):
        outputs, of_inputs, _ = recomputed(layer, chunks, tuple(state), gradients, begins)
        if has(values, {"outputs": outputs, "of_inputs": of_inputs}, "outputs", "of_inputs"):
            return True
    return False


def of_one_chunk_alone(case: Case, values: list) -> bool:
    """The parameters have the gradient of a single chunk: those of the others were overwritten or set to zero. Let
    `.grad` accumulate over all chunks.
    """
    weights, chunks, state, gradients, _ = case.inputs.values()
    layer, so_far = layer_of(weights), []
    recurrent = dict(layer.named_parameters())["weight_hh_l0"]
    recurrent.register_post_accumulate_grad_hook(lambda weight: so_far.append(weight.grad.clone()))
    recomputed(layer, chunks, tuple(state), gradients)
    alone = [so_far[0], *(after - before for before, after in pairwise(so_far))]
    return len(chunks) > 1 and any(differs(values[0]["parameters"][1], one) is None for one in alone)


def added_up_twice(case: Case, values: list) -> bool:
    """The parameters' gradients are a multiple of what they should be: they were accumulated in more than one backward
    pass, the recomputed one and another. `.grad` accumulates.
    """
    right = one_process(case)["parameters"]
    return any(has(values, {"parameters": [times * one for one in right]}, "parameters") for times in (2, 3))


@observed
def no_backward(case: Case, values: list) -> bool:
    """The parameters have no gradient: the backward pass is missing, or it went through a graph that does not include
    them. Nothing computed under `no_grad` has a graph.
    """
    return all(gradient is None for gradient in values[0]["parameters"])


def in_the_order_of_the_way_back(case: Case, values: list) -> bool:
    """The gradients of the inputs are in the order of the backward pass. Return them in the order of the chunks."""
    return has(values, {"of_inputs": one_process(case)["of_inputs"][::-1]}, "of_inputs")


@observed
def gradient_of_another_state(case: Case, values: list) -> bool:
    """All gradients are right except that of `state`: it should be the gradient of the state from which the *first*
    chunk started, which comes out of the last backward pass.
    """
    return has(values, one_process(case), "outputs", "of_inputs", "parameters")


def holds_too_much(case: Case, values: list) -> bool:
    """More than one chunk's graph is alive at once. In the forward pass, compute without a graph (`torch.no_grad()`)
    and save only the state from which each chunk starts; in the backward pass, release a chunk's graph before you build
    the next.
    """
    return over_budget(judge, costs, case, values, 0)


def computes_too_often(case: Case, values: list) -> bool:
    """Steps go through the layer more than twice. Save the state from which each chunk started: then you can recompute
    a chunk without recomputing all the chunks before it.
    """
    return over_budget(judge, costs, case, values, 1)


EXERCISE = Exercise(
    **texts("06.4"),
    cases=cases,
    drive=drive,
    modules=("torch.fx.experimental.symbolic_shapes",),
    judge=judge,
    costs=costs,
    symptoms=(
        changes_what_it_was_given,
        holds_too_much,
        computes_too_often,
        begins_at_zero,
        forgets_the_state,
        no_backward,
        gradient_stops,
        gradient_of_one_half,
        recomputed_from_elsewhere,
        of_one_chunk_alone,
        added_up_twice,
        in_the_order_of_the_way_back,
        gradient_of_another_state,
    ),
)
