"""06.3 Carry the state, and its gradient: the check, and the common mistakes it recognizes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Cost, Exercise, differs, draw, seeded
from course_lib.checks.private import by_rank, on_first, on_last
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import GRADIENT_OF_ONE_HALF, GRADIENT_STOPS, observed, says

HIDDEN, SEQUENCES = 2, 2
FORWARD, BACK = "the state goes forward", "its gradient comes back"

Cut = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # what happens to the state between two chunks


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, steps: list[int]) -> Case:
        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        weights = [[numbers(*parameter.shape) for parameter in layer().parameters()] for _ in range(2)]
        inputs = {
            "weights": weights,
            "chunks": [numbers(length, SEQUENCES, HIDDEN) for length in steps],
            "gradients": [numbers(length, SEQUENCES, HIDDEN) for length in steps],
        }
        chunks = "1 chunk" if len(steps) == 1 else f"{len(steps)} chunks"
        each = f"{steps[0]} step{'s' * (steps[0] > 1)}" + " each" * (len(steps) > 1)
        says = each if len(set(steps)) == 1 else f"{', '.join(map(str, steps))} steps"
        return Case(part, 2, inputs, f"{chunks} of {says}")

    def lengths(chance: Random) -> list[int]:
        return [chance.randint(1, 4) for _ in range(chance.randint(1, 5))]

    drawn = draw(lengths, 6, seed)
    return [  # unequal chunks only in the backward part: with them, a message in the wrong order has the wrong shape
        *(case(FORWARD, steps) for steps in ([2, 2], [3], [1, 1, 1], [2, 2, 2, 2])),
        *(case(BACK, steps) for steps in ([2, 2], [3], [1, 3, 2], [1, 1, 1, 1], *drawn)),
    ]


def layer(weights: list[Tensor] | None = None) -> nn.LSTM:
    made = nn.LSTM(HIDDEN, HIDDEN).double()
    with torch.no_grad():
        for parameter, weight in zip(made.parameters(), weights or [], strict=False):
            parameter.copy_(weight)
    return made


def drive(answer, weights: list[list[Tensor]], chunks: list[Tensor], gradients: list[Tensor]):
    from course_lib.core.metering import meter

    rank = dist.get_rank()
    stage = layer(weights[rank])
    empty = [torch.zeros_like(chunk) for chunk in chunks]
    with meter() as spent:
        outputs, carried = answer(stage, chunks if rank == 0 else empty, gradients if rank == 1 else empty)
    return {
        "outputs": outputs,
        "carried": carried,
        "parameters": [parameter.grad for parameter in stage.parameters()],
        "steps": [shape[0] for shape in spent.forwards.get("LSTM", []) if shape],
    }


def judge(case: Case, values: list) -> str | None:
    for rank, (value, right) in enumerate(zip(values, one_process(case), strict=True)):
        for name in ["outputs"] if case.part == FORWARD else list(right):
            difference = differs(value[name], right[name], name)
            if difference:
                return f"rank {rank}: {difference}"
    return None


def costs(case: Case, values: list) -> list[Cost]:
    longest = max(len(chunk) for chunk in case.inputs["chunks"])
    return [Cost("steps in one call of the layer", max(max(value["steps"], default=0) for value in values), longest)]


def one_process(case: Case, cut: Cut | None = None) -> list[dict]:
    """Return each stage's values, computed in a single process with both layers in one graph."""
    values, seen = case.inputs["chunks"], []
    for weights in case.inputs["weights"]:
        seen.append(through(layer(weights), values, cut))
        values = seen[-1][1]
    losses = [(output * by).sum() for output, by in zip(values, case.inputs["gradients"], strict=True)]
    loss = torch.stack(losses).sum()
    return [gradients_of(loss, *each) for each in seen]


def through(stage: nn.LSTM, chunks: list[Tensor], cut: Cut | None) -> tuple[nn.LSTM, list, list]:
    outputs, states, state = [], [], None
    for chunk in chunks:
        if state is not None:
            state = cut(*state) if cut else state
            states.append(state)
        output, state = stage(chunk, state)
        outputs.append(output)
    return stage, outputs, states


def gradients_of(loss: Tensor, stage: nn.LSTM, outputs: list, states: list) -> dict:
    own = list(torch.autograd.grad(loss, list(stage.parameters()), retain_graph=True))
    carried = [[gradient_of(part, loss) for part in pair] for pair in states]
    return {"outputs": outputs, "carried": carried, "parameters": own}


def gradient_of(part: Tensor, loss: Tensor) -> Tensor | None:
    return torch.autograd.grad(loss, part, retain_graph=True)[0] if part.requires_grad else None


def outputs_are(case: Case, values: list, cut: Cut) -> bool:
    variant = one_process(case, cut)
    alike = [differs(value["outputs"], other["outputs"]) is None for value, other in zip(values, variant, strict=True)]
    return len(case.inputs["chunks"]) > 1 and all(alike)


def parameters_are(case: Case, values: list, cut: Cut) -> bool:
    pairs = zip(values, one_process(case, cut), strict=True)
    return len(case.inputs["chunks"]) > 1 and all(
        differs(value["parameters"], other["parameters"]) is None for value, other in pairs
    )


def rank_1_is_right(case: Case, values: list) -> bool:
    return differs(values[1]["parameters"], one_process(case)[1]["parameters"]) is None


def rank_0_with(case: Case, values: list, of_outputs: list[Tensor]) -> bool:
    """Return whether rank 0's gradients are those it would get if `of_outputs` were the gradients of its outputs."""
    stage, outputs, states = through(layer(case.inputs["weights"][0]), case.inputs["chunks"], None)
    loss = sum(((output * by).sum() for output, by in zip(outputs, of_outputs, strict=True)), start=torch.zeros(()))
    wrong = gradients_of(loss, stage, outputs, states)["parameters"]
    return rank_1_is_right(case, values) and differs(values[0]["parameters"], wrong) is None


def every_chunk_from_zero(case: Case, values: list) -> bool:
    """Every chunk starts from the zero state, as if it were a separate sequence: the LSTM forgets at every cut. Each
    chunk must start from the state in which the previous chunk ended, on the same stage.
    """
    return outputs_are(case, values, lambda h, c: (0 * h, 0 * c))


def carries_half_of_the_state(case: Case, values: list) -> bool:
    """You carry only one half of the state, h or c, and start the other at zero. The state is the pair: h is what the
    next step sees, c is the memory.
    """
    halves: list[Cut] = [lambda h, c: (h, 0 * c), lambda h, c: (0 * h, c)]
    return any(outputs_are(case, values, half) for half in halves)


@observed
def carries_across_ranks(case: Case, values: list) -> bool:
    """Rank 0's outputs are right, rank 1's are not: either rank 1 starts a chunk from a state that isn't its own
    previous one, or its inputs are not rank 0's outputs. The state stays on its stage; only outputs are sent.
    """
    right = one_process(case)
    wrong = differs(values[1]["outputs"], right[1]["outputs"])
    return wrong is not None and differs(values[0]["outputs"], right[0]["outputs"]) is None


@observed
def no_backward(case: Case, values: list) -> bool:
    """The parameters have no gradient: the backward pass is missing, or the graph is detached from the layer."""
    return case.part == BACK and all(gradient is None for value in values for gradient in value["parameters"])


@says(GRADIENT_STOPS)
def stops_at_the_cut(case: Case, values: list) -> bool:
    return parameters_are(case, values, lambda h, c: (h.detach(), c.detach()))


@says(GRADIENT_OF_ONE_HALF)
def gradient_of_one_half(case: Case, values: list) -> bool:
    halves: list[Cut] = [lambda h, c: (h, c.detach()), lambda h, c: (h.detach(), c)]
    return any(parameters_are(case, values, half) for half in halves)


def sends_back_what_it_got(case: Case, values: list) -> bool:
    """Rank 1's gradients are right, rank 0's are not: you send back the gradient of rank 1's *outputs*. Rank 0 needs
    the gradient of rank 1's inputs, which are rank 0's outputs.
    """
    return rank_0_with(case, values, case.inputs["gradients"])


def sends_the_first_chunk_first(case: Case, values: list) -> bool:
    """Rank 0 receives gradients in the order in which you send them, and mistakes the first chunk's for the last one's:
    they have the same shape. It needs the *last* chunk's gradient first.
    """
    stage, inputs = layer(case.inputs["weights"][1]), [one.detach() for one in one_process(case)[0]["outputs"]]
    outputs = through(stage, [one.requires_grad_() for one in inputs], None)[1]
    torch.autograd.backward(outputs, case.inputs["gradients"])
    return rank_0_with(case, values, [one.grad for one in reversed(inputs) if one.grad is not None])


@observed
def rank_0_gets_something_else(case: Case, values: list) -> bool:
    """Rank 1's gradients are right, rank 0's are not: what rank 0 receives for a chunk is not the gradient of its
    outputs for that chunk. It needs the gradient of rank 1's *inputs* for that chunk, last chunk first.
    """
    differ = differs(values[0]["parameters"], one_process(case)[0]["parameters"])
    return case.part == BACK and rank_1_is_right(case, values) and differ is not None


def in_another_order(case: Case, values: list) -> bool:
    """The gradients are right, but `carried` is in the order of the backward pass. Return it in the order of the
    chunks.
    """
    pairs = list(zip(values, one_process(case), strict=True))
    reverse = all(differs(value["carried"], right["carried"][::-1]) is None for value, right in pairs)
    return reverse and all(differs(value["parameters"], right["parameters"]) is None for value, right in pairs)


@observed
def one_too_many(case: Case, values: list) -> bool:
    """`carried` should have one entry for every chunk but the first, which starts from the zero state: nothing was
    carried into it. The last chunk's final state is not carried anywhere, either.
    """
    return all(len(value["carried"]) == len(case.inputs["chunks"]) for value in values)


def added_up_twice(case: Case, values: list) -> bool:
    """The parameters' gradients are a multiple of what they should be: you ran backward through the same graph more
    than once, and `.grad` accumulates.
    """
    pairs = list(zip(values, one_process(case), strict=True))
    return any(
        differs(value["parameters"], [times * one for one in right["parameters"]]) is None
        for value, right in pairs
        for times in (2, 3)
    )


def all_at_once(case: Case, values: list) -> bool:
    """The layer gets several chunks in one call. In a pipeline over time, the next stage is waiting for the first of
    them: run the layer on one chunk at a time.
    """
    return judge(case, values) is None


def waits_for_nothing(stage, chunks, gradients):
    """Rank 0 waits for a gradient that rank 1 never sends."""
    if dist.get_rank() == 0:
        for inputs in chunks:
            dist.send(stage(inputs)[0].detach().contiguous(), 1)
        dist.recv(gradients[-1], 1)
    else:
        for inputs in chunks:
            dist.recv(inputs, 0)
    return chunks, []


EXERCISE = Exercise(
    **texts("06.3"),
    cases=cases,
    drive=drive,
    private={"weights": by_rank, "chunks": on_first, "gradients": on_last},
    modules=("torch.fx.experimental.symbolic_shapes",),
    judge=judge,
    costs=costs,
    symptoms=(
        all_at_once,
        every_chunk_from_zero,
        carries_half_of_the_state,
        carries_across_ranks,
        no_backward,
        stops_at_the_cut,
        gradient_of_one_half,
        sends_back_what_it_got,
        sends_the_first_chunk_first,
        rank_0_gets_something_else,
        added_up_twice,
        in_another_order,
        one_too_many,
    ),
    hanging=waits_for_nothing,
)
