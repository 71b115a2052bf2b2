"""06.3 Carry the state, and its gradient: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, differs, seeded

HIDDEN, SEQUENCES = 2, 2


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
        return Case(part, 2, inputs, f"{len(steps)} chunks of {', '.join(map(str, steps))} steps")

    return [
        case("the state goes forward", [2, 2]),
        case("its gradient comes back", [2, 2]),
        case("its gradient comes back", [1, 3, 2]),
    ]


def layer(weights: list[Tensor] | None = None) -> nn.LSTM:
    made = nn.LSTM(HIDDEN, HIDDEN).double()
    with torch.no_grad():
        for parameter, weight in zip(made.parameters(), weights or [], strict=False):
            parameter.copy_(weight)
    return made


def drive(answer, weights: list[list[Tensor]], chunks: list[Tensor], gradients: list[Tensor]):
    rank = dist.get_rank()
    stage = layer(weights[rank])
    empty = [torch.zeros_like(chunk) for chunk in chunks]
    outputs, carried = answer(stage, chunks if rank == 0 else empty, gradients if rank == 1 else empty)
    own = [parameter.grad for parameter in stage.parameters()]
    return {"outputs": list(outputs), "carried": [list(pair) for pair in carried], "parameters": own}


def judge(case: Case, values: list) -> str | None:
    for rank, (value, right) in enumerate(zip(values, right_carry(case), strict=True)):
        names = ["outputs"] if case.part == "the state goes forward" else list(right)
        for name in names:
            difference = differs(value[name], right[name], name=name)
            if difference:
                return f"rank {rank}: {difference}"
    return None


def right_carry(case: Case) -> list[dict]:
    """One process, one graph: all chunks through both layers, and autograd alone on the way back."""
    values, seen = case.inputs["chunks"], []
    for weights in case.inputs["weights"]:
        stage, states = layer(weights), [None]
        outputs = []
        for chunk in values:
            output, state = stage(chunk, states[-1])
            outputs.append(output)
            states.append(state)
        values = outputs
        seen.append((stage, outputs, states[1:-1]))
    losses = ((output * by).sum() for output, by in zip(values, case.inputs["gradients"], strict=True))
    loss = sum(losses, start=torch.zeros(()))
    carried = [[list(torch.autograd.grad(loss, pair, retain_graph=True)) for pair in states] for _, _, states in seen]
    loss.backward()
    return [
        {"outputs": outputs, "carried": pairs, "parameters": [parameter.grad for parameter in stage.parameters()]}
        for (stage, outputs, _), pairs in zip(seen, carried, strict=True)
    ]


def in_chunks(stage, chunks, gradients, begin=None, hand_back=None, send_back=None):
    """A right answer; each mistake below does one of the last three things in another way."""
    kept = forwards(stage, chunks, begin or as_leaves)
    carried = backwards(kept, gradients, hand_back or both)
    if dist.get_rank() == 1:
        of_inputs = [inputs.grad for inputs, _, _, _ in kept]
        for gradient in (send_back or last_first)(of_inputs, gradients):
            dist.send(gradient, 0)
    return [outputs for _, _, outputs, _ in kept], carried


def forwards(stage, chunks, begin):
    state, kept = None, []
    for inputs in chunks:
        if dist.get_rank() == 1:
            dist.recv(inputs, 0)
        inputs, start = inputs.detach().requires_grad_(), state and begin(*state)
        outputs, state = stage(inputs, start)
        if dist.get_rank() == 0:
            dist.send(outputs.detach(), 1)
        kept.append((inputs, start, outputs, state))
    return kept


def backwards(kept, gradients, hand_back):
    carried: list = []
    for (_, start, outputs, end), gradient in zip(reversed(kept), reversed(gradients), strict=True):
        if dist.get_rank() == 0:
            dist.recv(gradient, 1)
        pairs = [(outputs, gradient), *(hand_back(end, carried[0]) if carried else [])]
        torch.autograd.backward([result for result, _ in pairs], [of_result for _, of_result in pairs])
        carried = [[part.grad for part in start], *carried] if start else carried
    return carried


def as_leaves(h, c):
    return h.detach().requires_grad_(), c.detach().requires_grad_()


def both(end, gradients):
    return list(zip(end, gradients, strict=True))


def last_first(of_inputs, of_outputs):
    return reversed(of_inputs)


def every_chunk_from_zero(stage, chunks, gradients):
    """Every chunk begins in the zero state, as if it were a sequence of its own: the LSTM forgets at every cut. The
    state in which a chunk ends is the one in which the next begins, on the same stage.
    """
    return in_chunks(stage, chunks, gradients, begin=lambda h, c: as_leaves(0 * h, 0 * c))


def carries_h_alone(stage, chunks, gradients):
    """You carry h and begin with c at zero. An LSTM's memory is c: the state is the pair."""
    return in_chunks(stage, chunks, gradients, begin=lambda h, c: as_leaves(h, 0 * c))


def stops_at_the_cut(stage, chunks, gradients):
    """The outputs are right, and the gradient stops at every cut: this is truncated backpropagation. The gradient of
    the state in which a chunk *began* must come in at the end of the chunk before it, beside the one of its outputs.
    """
    return in_chunks(stage, chunks, gradients, hand_back=lambda end, of_state: [])


def gradient_of_h_alone(stage, chunks, gradients):
    """You hand back the gradient of h and not that of c. Both were carried forward, so both have a gradient."""
    return in_chunks(stage, chunks, gradients, hand_back=lambda end, of_state: [(end[0], of_state[0])])


def sends_back_what_it_got(stage, chunks, gradients):
    """Rank 1's own gradients are right, rank 0's are not: what you send back is the gradient of rank 1's *outputs*.
    Rank 0 needs that of rank 1's inputs, which are its outputs.
    """
    return in_chunks(stage, chunks, gradients, send_back=lambda of_inputs, of_outputs: reversed(of_outputs))


def sends_the_first_chunk_first(stage, chunks, gradients):
    """Rank 0 receives gradients in the order in which you send them, and takes the first chunk's for the last one's:
    they look alike. It needs the *last* chunk's first.
    """
    return in_chunks(stage, chunks, gradients, send_back=lambda of_inputs, of_outputs: of_inputs)


def waits_for_nothing(stage, chunks, gradients):
    """Rank 0 waits for a gradient that rank 1 never sends. After a chunk's backward pass, send back the gradient of
    what you received for it.
    """
    return in_chunks(stage, chunks, gradients, send_back=lambda of_inputs, of_outputs: [])


EXERCISE = Exercise(
    number="06.3",
    title="Carry the state, and its gradient",
    answer="run_stage",
    level="build",
    minutes=35,
    parts={"the state goes forward": 2, "its gradient comes back": 4},
    read="3 · Wavefront: a pipeline over time",
    hints=(
        "Write the way forward first, for both ranks: receive (on rank 1), run the layer from the state in which the "
        "last chunk ended, send (on rank 0). Keep of each chunk what its backward pass will need.",
        "A chunk is a graph of its own: what it begins with, its inputs and its state, are leaves. Detach them and let "
        "them require a gradient; after the backward pass it is in their `.grad`.",
        "A chunk has two kinds of results: its outputs, and the state in which it ended. Both have a gradient, except "
        "for the last chunk's state. `torch.autograd.backward([a, b, c], [grad_a, grad_b, grad_c])` takes several.",
        "Last chunk first, on both ranks: the gradient of the state comes from the chunk *after*.",
    ),
    cases=cases,
    drive=drive,
    judge=judge,
    mistakes=(
        every_chunk_from_zero,
        carries_h_alone,
        stops_at_the_cut,
        gradient_of_h_alone,
        sends_back_what_it_got,
        sends_the_first_chunk_first,
    ),
    hanging=waits_for_nothing,
)
