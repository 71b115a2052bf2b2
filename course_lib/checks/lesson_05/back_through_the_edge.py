"""05.1 Back through the edge: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, same_as, seeded

WIDTH = 2


class BatchFirst(nn.Module):
    """A stage as many scripts have it: (sequences, steps, width) in and out."""

    def __init__(self, weights: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True).double()
        with torch.no_grad():
            for parameter, weight in zip(self.lstm.parameters(), weights, strict=False):
                parameter.copy_(weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.lstm(inputs)[0]


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, sequences: int, steps: int) -> Case:
        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        inputs = {
            "weights": [[numbers(*parameter.shape) for parameter in BatchFirst().parameters()] for _ in range(ranks)],
            "batch": numbers(sequences, steps, WIDTH),
            "targets": numbers(sequences, steps, WIDTH),
        }
        return Case(part, ranks, inputs, f"a stage each, {sequences} sequences of {steps} steps")

    return [
        case("one edge", 2, 2, 3),
        case("one edge", 2, 3, 2),
        case("a stage between two others", 3, 2, 3),
    ]


def drive(answer, weights: list[list[Tensor]], batch: Tensor, targets: Tensor):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    stage = BatchFirst(weights[rank])
    loss = partial(nn.functional.mse_loss, target=targets) if rank == last else None
    answer(stage, batch if rank == 0 else None, loss, tuple(batch.shape))
    return {name: parameter.grad for name, parameter in stage.lstm.named_parameters()}


def expected(case: Case) -> list[dict]:
    stages = [BatchFirst(weights) for weights in case.inputs["weights"]]
    outputs = nn.Sequential(*stages)(case.inputs["batch"])
    nn.functional.mse_loss(outputs, case.inputs["targets"]).backward()
    return [{name: parameter.grad for name, parameter in stage.lstm.named_parameters()} for stage in stages]


def across(
    stage: nn.Module,
    inputs: Tensor | None,
    loss: Callable | None,
    shape: tuple[int, ...],
    sent: Callable = Tensor.contiguous,
    leaf: Callable = Tensor.requires_grad_,
    start: Callable = Tensor.backward,
    returned: Callable = lambda inputs, outputs: inputs.grad,
) -> None:
    """A right answer; each mistake below does one of the last four things in another way."""
    rank = dist.get_rank()
    if inputs is None:
        inputs = torch.empty(shape, dtype=torch.float64)
        dist.recv(inputs, rank - 1)
        leaf(inputs)
    outputs = stage(inputs)
    outputs.retain_grad()
    if loss is None:
        dist.send(sent(outputs.detach()), rank + 1)
        gradient = torch.empty(shape, dtype=torch.float64)
        dist.recv(gradient, rank + 1)
        start(outputs, gradient)
    else:
        loss(outputs).backward()
    if rank > 0:
        dist.send(returned(inputs, outputs), rank - 1)


def sends_a_view(stage, inputs, loss, shape):
    """A message is a stretch of memory, and the output of a `batch_first` LSTM is a view that is turned around: make it
    contiguous before you send it. The same may hold for a gradient.
    """
    across(stage, inputs, loss, shape, sent=lambda outputs: outputs)


def forgets_the_leaf(stage, inputs, loss, shape):
    """What was received has no gradient: to autograd it is a constant. It must require a gradient *before* the stage
    uses it, and then has one after the backward pass.
    """
    across(stage, inputs, loss, shape, leaf=lambda inputs: inputs)


def nothing_comes_back(stage, inputs, loss, shape):
    """The stages before the last have no gradient at all: nothing was sent back. They would stay as they are, while the
    loss still falls, because the last stage learns to make the best of it.
    """
    rank = dist.get_rank()
    if inputs is None:
        inputs = torch.empty(shape, dtype=torch.float64)
        dist.recv(inputs, rank - 1)
    outputs = stage(inputs)
    if loss is None:
        dist.send(outputs.detach().contiguous(), rank + 1)
    else:
        loss(outputs).backward()


def gradient_of_its_outputs(stage, inputs, loss, shape):
    """What you send back is the derivative of the loss by your *outputs*. The rank before needs the one by what it has
    sent: your inputs.
    """
    across(stage, inputs, loss, shape, returned=lambda inputs, outputs: outputs.grad.contiguous())


def sends_the_activations_back(stage, inputs, loss, shape):
    """You send back the activations that you have received. What must travel is their gradient: `.grad`, after the
    backward pass.
    """
    across(stage, inputs, loss, shape, returned=lambda inputs, outputs: inputs.detach())


def backward_of_the_sum(stage, inputs, loss, shape):
    """You receive a gradient and begin the backward pass without it: `outputs.sum().backward()` is the gradient of
    the outputs' sum. Begin with the one that came: it says how the loss depends on each output.
    """
    across(stage, inputs, loss, shape, start=lambda outputs, gradient: outputs.sum().backward())


def passes_it_on(stage, inputs, loss, shape):
    """Two stages work, and with three the first one's gradient is wrong: the middle stage hands on the gradient that it
    has received. It must first take it back through its own layer.
    """

    def returned(received, outputs):
        return (received.grad if loss else outputs.grad).contiguous()

    across(stage, inputs, loss, shape, returned=returned)


def waits_for_nothing(stage, inputs, loss, shape):
    """A stage waits for a gradient that the next one never sends. After its backward pass, every stage but the first
    sends back the gradient of what it has received.
    """
    rank = dist.get_rank()
    if loss is None:
        across(stage, inputs, loss, shape)
    else:
        dist.recv(torch.empty(shape, dtype=torch.float64), rank - 1)


EXERCISE = Exercise(
    number="05.1",
    title="Back through the edge",
    answer="train_stage",
    level="exercise",
    minutes=20,
    parts={"one edge": 3, "a stage between two others": 2},
    read="2 · By hand: an edge between two ranks",
    hints=(
        "The way forward first: receive unless there are `inputs`, run the stage, send unless there is a `loss`. What "
        "is sent must be detached and contiguous.",
        "What was received is a leaf of this rank's graph. What must it do, to have a `.grad` later?",
        "`outputs.backward(gradient)` goes on with a gradient that came from elsewhere.",
        "A stage in the middle is both: it receives activations and sends some, receives a gradient and sends one.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        sends_a_view,
        forgets_the_leaf,
        nothing_comes_back,
        gradient_of_its_outputs,
        sends_the_activations_back,
        backward_of_the_sum,
        passes_it_on,
    ),
    hanging=waits_for_nothing,
)
