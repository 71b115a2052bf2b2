"""05.1 Back through the edge: the check, and the wrong answers it recognizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Cost, Exercise, differs, same_as, seeded
from course_lib.checks.private import by_rank, on_first, on_last
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import A_BARRIER, observed, only_barriers, says

WIDTH = 2


class BatchFirst(nn.Module):
    """A stage with inputs and outputs of shape (sequences, steps, width), as in many scripts."""

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
        return Case(part, ranks, inputs, f"one stage per rank, {sequences} sequences of {steps} steps")

    return [
        case("one edge", 2, 2, 3),
        case("one edge", 2, 3, 2),
        case("one edge", 2, 1, 1),
        case("a stage between two others", 3, 2, 3),
        case("a stage between two others", 4, 3, 2),
        case("a stage between two others", 3, 1, 4),  # with one sequence, autograd saves the inputs, not a copy
    ]


def drive(answer, weights: list[list[Tensor]], batch: Tensor, targets: Tensor):
    from course_lib.core.metering import meter

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    stage = BatchFirst(weights[rank])
    loss = partial(nn.functional.mse_loss, target=targets) if rank == last else None
    with meter() as spent:
        answer(stage, batch if rank == 0 else None, loss, tuple(batch.shape))
    return {
        "gradients": {name: parameter.grad for name, parameter in stage.lstm.named_parameters()},
        "runs": len(spent.forwards.get("LSTM", [])),
        "messages": spent.messages,
        "bytes": sum(spent.sent_to.values()),
        "collectives": spent.calls,
        "peers": [peer - rank for peer in {**spent.sent_to, **spent.received_from}],
    }


def expected(case: Case) -> list[dict]:
    stages = [BatchFirst(weights) for weights in case.inputs["weights"]]
    outputs = nn.Sequential(*stages)(case.inputs["batch"])
    nn.functional.mse_loss(outputs, case.inputs["targets"]).backward()
    return [{name: parameter.grad for name, parameter in stage.lstm.named_parameters()} for stage in stages]


def judge(case: Case, values: list) -> str | None:
    if difference := same_as(expected)(case, [value["gradients"] for value in values]):
        return difference
    return next((f"rank {rank}: {what}" for rank, what in enumerate(_too_short(case, values)) if what), None)


def _too_short(case: Case, values: list) -> list[str]:
    """Return, for each rank, a sentence if its messages have fewer bytes than float64 needs, else ""."""
    each = 8 * case.inputs["batch"].numel()
    edges = [(rank > 0) + (rank < case.ranks - 1) for rank in range(case.ranks)]
    return [
        f"{value['messages']} messages of {value['bytes']} bytes in all; in float64, each takes {each}"
        if value["messages"] == edge and value["bytes"] < edge * each
        else ""
        for value, edge in zip(values, edges, strict=True)
    ]


@observed
def has_sent_short_numbers(case: Case, values: list) -> bool:
    """The gradients are right to a few digits, but not all messages are float64: a message in a lower-precision dtype,
    such as the default of `torch.empty(shape)`, loses the other digits. Send and receive in float64, forward and back.
    """
    right = same_as(expected)(case, [value["gradients"] for value in values]) is None
    return right and any(_too_short(case, values))


def costs(case: Case, values: list) -> list[Cost]:
    edges = [(rank > 0) + (rank < case.ranks - 1) for rank in range(case.ranks)]
    size = case.inputs["batch"].numel() * 8
    far = [sum(abs(step) > 1 for step in value["peers"]) for value in values]
    of_ranks = zip(values, edges, strict=True)
    most, budget = max(((value, edge) for value, edge in of_ranks), key=lambda both: both[0]["messages"] - both[1])
    return [
        Cost("runs of a stage", max(value["runs"] for value in values), 1),
        Cost("messages that a rank sends", most["messages"], budget, at_least=min(1, budget)),
        Cost("bytes that this rank sends", most["bytes"], budget * size),
        Cost("messages that go past a neighbor", max(far), 0),
        Cost("collectives", max(sum(value["collectives"].values()) for value in values), 0),
    ]


@observed
def has_no_gradient_anywhere(case: Case, values: list) -> bool:
    """No stage has a gradient, not even the last one, which needs none from other ranks. This is what you get if there
    is no backward pass, or if it begins from outputs that are detached from the stage: detach only what you send, and
    start from the outputs that the stage returned.
    """
    return all(gradient is None for value in values for gradient in value["gradients"].values())


@observed
def has_overwritten_its_inputs(case: Case, values: list) -> bool:
    """All gradients are right except those of `weight_ih`, which the backward pass computes from the stage's inputs: by
    then, something else was there. If you receive the gradient into the tensor that holds the inputs, use a new one.
    """
    pairs = [(value["gradients"], right) for value, right in zip(values, expected(case), strict=True)]
    wrong = {name for own, right in pairs for name in right if differs(own[name], right[name]) is not None}
    return wrong == {"weight_ih_l0"}


@observed
def has_no_gradients(case: Case, values: list) -> bool:
    """The stages before the last have no gradient at all: nothing was sent back, or no backward pass continued from it.
    They would never learn, while the loss still falls, because the last stage makes the best of it.
    """
    return all(gradient is None for value in values[:-1] for gradient in value["gradients"].values())


def has_more_than_it_should(case: Case, values: list) -> bool:
    """Every gradient is a multiple of what it should be: several backward passes are added up in `.grad`, or the loss
    is scaled. Each stage runs forward once and backward once, from the unscaled loss.
    """
    pairs = [(value["gradients"], right) for value, right in zip(values, expected(case), strict=True)]
    ratios = [gradient / right[name] for value, right in pairs for name, gradient in value.items()]
    factors = [ratio.flatten()[0] for ratio in ratios]
    same = all(bool((ratio - factor).abs().max() < 1e-4) for ratio, factor in zip(ratios, factors, strict=True))
    return same and all(bool(abs(factor) > 1e-4 and abs(factor - 1) > 1e-4) for factor in factors)


def has_taken_a_mean(case: Case, values: list) -> bool:
    """The gradient that arrives is divided by the number of its elements, as `(outputs * gradient).mean().backward()`
    does. Each output's part of the loss counts in full: call `outputs.backward(gradient)`.
    """
    return _is_like(case, values, start=lambda inputs, outputs, gradient: gradient / gradient.numel())


def has_run_again(case: Case, values: list) -> bool:
    """A stage runs more than once. Its first run saved all that the backward pass needs: continue from its outputs."""
    return judge(case, values) is None and max(value["runs"] for value in values) > 1


@says(A_BARRIER)
def has_waited_for_all(case: Case, values: list) -> bool:
    return judge(case, values) is None and only_barriers(value["collectives"] for value in values)


def has_called_a_collective(case: Case, values: list) -> bool:
    """The gradients are right, but a collective carries them: all ranks take part in what concerns two of them. Two
    messages cross an edge: `send` and `recv` with the previous rank and the next.
    """
    *_, collectives = costs(case, values)
    return judge(case, values) is None and collectives.spent > 0


def has_talked_to_a_far_rank(case: Case, values: list) -> bool:
    """The gradients are right, but some messages go past a neighbor. A stage needs only the rank before it and the rank
    after it.
    """
    *_, far, _ = costs(case, values)
    return judge(case, values) is None and far.spent > 0


Way = Callable[[Tensor, Tensor, Tensor], "Tensor | None"]  # (what a stage received, what it sent, its gradient)


def _is_like(
    case: Case,
    values: list,
    start: Way = lambda i, o, gradient: gradient,
    returned: Way = lambda i, o, gradient: i.grad,
) -> bool:
    """Return whether the gradients are wrong, and match a backward pass with this `start` that sends `returned`."""
    stages = [BatchFirst(weights) for weights in case.inputs["weights"]]
    received, sent = [], []
    batch = case.inputs["batch"]
    for stage in stages:
        received.append(batch.detach().requires_grad_())
        sent.append(stage(received[-1]))
        batch = sent[-1]
    (gradient,) = torch.autograd.grad(nn.functional.mse_loss(batch, case.inputs["targets"]), batch, retain_graph=True)
    for place, (own, outputs) in reversed(list(enumerate(zip(received, sent, strict=True)))):
        outputs.backward(gradient if place == case.ranks - 1 else start(own, outputs, gradient))
        sent_back = returned(own, outputs, gradient)
        assert sent_back is not None  # what was received requires a gradient, and has one now
        gradient = sent_back.detach()
    wrong = [{name: parameter.grad for name, parameter in stage.lstm.named_parameters()} for stage in stages]
    return judge(case, values) is not None and differs([value["gradients"] for value in values], wrong) is None


def has_begun_without_it(case: Case, values: list) -> bool:
    """You receive a gradient but begin the backward pass without it, from ones (as `outputs.sum().backward()` does):
    that gives the gradient of the outputs' sum. Begin with the gradient you received: it says how the loss depends on
    each output.
    """
    return _is_like(case, values, start=lambda inputs, outputs, gradient: torch.ones_like(gradient))


def has_sent_the_gradient_of_its_outputs(case: Case, values: list) -> bool:
    """What you send back is the gradient of the loss with respect to your *outputs*. The previous rank needs the
    gradient with respect to what it sent: your inputs. Run the backward pass through your own stage first.
    """

    def last_is_right(inputs: Tensor, outputs: Tensor, gradient: Tensor) -> Tensor:
        return gradient if torch.equal(outputs, last) else inputs.grad if inputs.grad is not None else gradient

    last = nn.Sequential(*map(BatchFirst, case.inputs["weights"]))(case.inputs["batch"])
    all_hand_on = _is_like(case, values, returned=lambda inputs, outputs, gradient: gradient)
    return all_hand_on or _is_like(case, values, returned=last_is_right) or _passes_on(case, values, last)


def _passes_on(case: Case, values: list, last: Tensor) -> bool:
    """Return whether the stages between two others, and only these, pass on the gradient that they received."""

    def returned(inputs: Tensor, outputs: Tensor, gradient: Tensor) -> Tensor:
        return inputs.grad if torch.equal(outputs, last) and inputs.grad is not None else gradient

    return _is_like(case, values, returned=returned)


def has_sent_the_activations_back(case: Case, values: list) -> bool:
    """You send back the activations that you have received. What must travel is their gradient: `.grad`, after the
    backward pass.
    """
    return _is_like(case, values, returned=lambda inputs, outputs, gradient: inputs)


def has_sent_more(case: Case, values: list) -> bool:
    """The gradients are right, but there are more messages than two per edge, or larger ones than necessary. All ranks
    know the `shape`, and a rank needs only one tensor from each neighbor.
    """
    return judge(case, values) is None


@observed
def is_wrong_before_the_last_stage(case: Case, values: list) -> bool:
    """The last stage is right, but one before it is not: look at what crosses the edge between them. Forward, it is the
    outputs, detached; backward, it is the gradient of exactly these numbers, from which the backward pass continues.
    """
    return differs(values[-1]["gradients"], expected(case)[-1]) is None


@observed
def is_wrong_from_the_last_stage_on(case: Case, values: list) -> bool:
    """The gradients of the last stage are wrong, though it needs none from other ranks: look at what it receives, and
    at the loss where its backward pass begins.
    """
    return judge(case, values) is not None


def across(
    stage: nn.Module,
    inputs: Tensor | None,
    loss: Callable | None,
    shape: tuple[int, ...],
) -> None:
    """The reference answer."""
    rank = dist.get_rank()
    if inputs is None:
        inputs = torch.empty(shape, dtype=torch.float64)
        dist.recv(inputs, rank - 1)
        inputs.requires_grad_()
    outputs = stage(inputs)
    if loss is None:
        dist.send(outputs.detach().contiguous(), rank + 1)
        gradient = torch.empty(shape, dtype=torch.float64)
        dist.recv(gradient, rank + 1)
        outputs.backward(gradient)
    else:
        loss(outputs).backward()
    if rank > 0 and inputs.grad is not None:
        dist.send(inputs.grad.contiguous(), rank - 1)


def waits_for_nothing(stage, inputs, loss, shape):
    """A stage waits for a gradient that the next one never sends. After its backward pass, every stage but the first
    sends back the gradient of what it received.
    """
    rank = dist.get_rank()
    if loss is None:
        across(stage, inputs, loss, shape)
    else:
        dist.recv(torch.empty(shape, dtype=torch.float64), rank - 1)


EXERCISE = Exercise(
    **texts("05.1"),
    cases=cases,
    drive=drive,
    private={"weights": by_rank, "batch": on_first, "targets": on_last},
    modules=("torch.fx.experimental.symbolic_shapes",),
    judge=judge,
    costs=costs,
    symptoms=(
        has_sent_short_numbers,
        has_no_gradient_anywhere,
        has_no_gradients,
        has_waited_for_all,
        has_called_a_collective,
        has_talked_to_a_far_rank,
        has_run_again,
        has_overwritten_its_inputs,
        has_begun_without_it,
        has_taken_a_mean,
        has_sent_the_gradient_of_its_outputs,
        has_sent_the_activations_back,
        has_more_than_it_should,
        has_sent_more,
        is_wrong_before_the_last_stage,
        is_wrong_from_the_last_stage_on,
    ),
    hanging=waits_for_nothing,
)
