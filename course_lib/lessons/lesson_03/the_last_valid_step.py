"""03.1 The last valid step: the check, and the wrong answers it recognizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, differs, draw, same_as, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import A_SHORTER_DTYPE, observed, says


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, steps: int, lengths: list[int], hidden: int = 2) -> Case:
        outputs, weights = (
            torch.randn(shape, generator=generator, dtype=torch.float64)
            for shape in ((steps, len(lengths), hidden), (len(lengths), hidden))
        )
        inputs = {"outputs": outputs, "lengths": torch.tensor(lengths), "weights": weights}
        return Case(part, 1, inputs, f"{steps} steps, sequences of lengths {lengths}, {hidden} numbers each")

    def some(part: str, least: int) -> list[Case]:
        return [case(part, *drawn) for drawn in draw(partial(shape_from, least), 8, seed)]

    return [
        case("the last valid step", 3, [2, 3, 1]),
        case("the last valid step", 5, [1, 5, 4, 2]),
        *some("the last valid step", 1),
        case("sequences without steps", 4, [0, 2, 4]),
        *some("sequences without steps", 0),
    ]


def shape_from(least: int, chance: random.Random) -> tuple[int, list[int], int]:
    """Return steps, lengths and hidden units. The rectangle is as long as the longest sequence, or longer."""
    steps = chance.randint(1, 6)
    return steps, [chance.randint(least, steps) for _ in range(chance.randint(1, 5))], chance.randint(1, 3)


def drive(answer, outputs: Tensor, lengths: Tensor, weights: Tensor):
    outputs, own = outputs.clone().requires_grad_(), lengths.clone()
    states = answer(outputs, own)
    if isinstance(states, Tensor) and states.requires_grad and states.shape == weights.shape:
        (states * weights).sum().backward()
    return {"states": states, "gradient": outputs.grad, "lengths": own}


def expected(case: Case) -> list:
    outputs, lengths, weights = (case.inputs[name] for name in ("outputs", "lengths", "weights"))
    states, gradient = torch.zeros_like(weights), torch.zeros_like(outputs)
    for sequence, length in enumerate(lengths.tolist()):
        if length:
            states[sequence] = outputs[length - 1, sequence]
            gradient[length - 1, sequence] = weights[sequence]
    return [{"states": states, "gradient": gradient}]


def judge(case: Case, values: list) -> str | None:
    (value,), (right,) = values, expected(case)
    nothing = value["gradient"] is None and not right["gradient"].any()  # without steps, no graph is needed
    made = {"states": value["states"], "gradient": right["gradient"] if nothing else value["gradient"]}
    changed = differs(value["lengths"], case.inputs["lengths"])
    return same_as(expected, exact=True)(case, [made]) or (
        f"the call has changed `lengths`: it {changed}" if changed else None
    )


def _picks(case: Case, values: list, step_of: Callable[[int], int | None]) -> bool:
    """Return whether each sequence's state is its output at `step_of(length)`, or zeros for None."""
    outputs, lengths = case.inputs["outputs"], case.inputs["lengths"].tolist()
    zeros = torch.zeros_like(outputs[0, 0])
    steps = [step_of(length) for length in lengths]
    picked = [zeros if step is None else outputs[step, sequence] for sequence, step in enumerate(steps)]
    return differs(values[0]["states"], torch.stack(picked)) is None


def _is_right(case: Case, values: list) -> bool:
    return differs(values[0]["states"], expected(case)[0]["states"]) is None


@observed
def has_changed_the_lengths(case: Case, values: list) -> bool:
    """You change `lengths`, the caller's tensor, in place (`-=`, or a method whose name ends in an underscore): the
    loss that reads it next would get the wrong lengths. Make a new tensor, as `lengths - 1` does.
    """
    return differs(values[0]["lengths"], case.inputs["lengths"]) is not None


@observed
def is_cut_from_the_graph(case: Case, values: list) -> bool:
    """The numbers are right, but no gradient flows through them: they were taken out of the graph (`detach`, `.data`,
    `.tolist()`). Index the tensor itself.
    """
    return _is_right(case, values) and values[0]["gradient"] is None


@observed
@says(A_SHORTER_DTYPE)
def is_in_a_shorter_dtype(case: Case, values: list) -> bool:
    not_exact = differs(values[0]["states"], expected(case)[0]["states"], exact=True) is not None
    return _is_right(case, values) and not_exact


def has_written_over_an_empty_one(case: Case, values: list) -> bool:
    """The numbers are right, but a sequence without steps has a gradient: its zeros were read from `outputs`, where you
    wrote them. Replace what you read with zeros, and leave `outputs` alone.
    """
    empty = case.inputs["lengths"] == 0
    return _is_right(case, values) and bool(values[0]["gradient"][:, empty].any())


def has_another_gradient(case: Case, values: list) -> bool:
    """The numbers are right, but the gradient also goes to other steps, or doesn't arrive: something was overwritten,
    or the states are made from more than the steps you should read. Pick the steps from `outputs` itself.
    """
    return _is_right(case, values)


def has_read_the_last_column(case: Case, values: list) -> bool:
    """You read the last column of the rectangle. For every sequence but the longest, that is the state after the LSTM
    kept running over padding. Each sequence has its own end: `lengths` says where.
    """
    last = case.inputs["outputs"].shape[0] - 1
    ways = (lambda length: last), (lambda length: last if length else None)
    return any(_picks(case, values, way) for way in ways)


def has_read_the_first_column(case: Case, values: list) -> bool:
    """You read the first step of each sequence. Only its last step, which `lengths` gives you, has seen all of it."""
    return any(_picks(case, values, way) for way in ((lambda length: 0), (lambda length: 0 if length else None)))


def is_one_step_late(case: Case, values: list) -> bool:
    """Steps count from 0: a sequence of length 3 ends at step 2. You read the step after the end, which is padding, and
    which doesn't exist for the longest sequence.
    """
    steps = case.inputs["outputs"].shape[0]
    ways = (lambda length: length % steps), (lambda length: min(length, steps - 1))
    return any(_picks(case, values, way) for way in ways)


def is_one_step_early(case: Case, values: list) -> bool:
    """You read the second-to-last step: a sequence of length 3 ends at step 2, counted from 0."""
    return _picks(case, values, lambda length: max(length - 2, 0) if length else None)


def has_read_a_step_of_an_empty_one(case: Case, values: list) -> bool:
    """A sequence without steps has no last one: a length of 0 gives step -1, which is the last column, or, clamped to
    0, the first. Its state must be zeros.
    """
    lengths = case.inputs["lengths"]
    right, states = expected(case)[0]["states"], values[0]["states"]
    return bool((lengths == 0).any()) and differs(states[lengths > 0], right[lengths > 0]) is None


def is_sorted_by_length(case: Case, values: list) -> bool:
    """The states are right, but not in the order of the batch: they are sorted by length, for example, so row 0 belongs
    to a different sequence. If you sort, sort back, or every target meets the wrong state.
    """
    states, right = (sorted(tensor.tolist()) for tensor in (values[0]["states"], expected(case)[0]["states"]))
    return differs(torch.tensor(states), torch.tensor(right)) is None


def has_averaged(case: Case, values: list) -> bool:
    """This is the mean over the steps of each sequence, or their sum. The exercise asks for the output at one of them,
    the last.
    """
    outputs, lengths = case.inputs["outputs"], case.inputs["lengths"]
    total = (outputs * (torch.arange(len(outputs)).unsqueeze(1) < lengths).unsqueeze(2)).sum(dim=0)
    return any(differs(values[0]["states"], way) is None for way in (total, total / lengths.clamp(min=1).unsqueeze(1)))


@observed
def has_picked_whole_steps(case: Case, values: list) -> bool:
    """One index picks whole steps: you get all sequences at the end of each one. Choose two things together, the step
    and the sequence.
    """
    return values[0]["states"].dim() > 2


@observed
def has_left_out_empty_ones(case: Case, values: list) -> bool:
    """There must be a row for every sequence of the batch, even for those without steps: theirs are zeros."""
    return len(values[0]["states"]) == int((case.inputs["lengths"] > 0).sum()) < len(case.inputs["lengths"])


def is_batch_first(case: Case, values: list) -> bool:
    """You treat the first dimension as the sequences. In this course it is time: `outputs[step, sequence]`. If there
    are as many steps as sequences, nothing warns you.
    """
    outputs, lengths = case.inputs["outputs"], case.inputs["lengths"]
    return differs(values[0]["states"], outputs[torch.arange(len(lengths)), lengths - 1]) is None


EXERCISE = Exercise(
    **texts("03.1"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        has_changed_the_lengths,
        is_cut_from_the_graph,
        is_in_a_shorter_dtype,
        has_written_over_an_empty_one,
        has_another_gradient,
        has_read_a_step_of_an_empty_one,
        has_read_the_last_column,
        has_read_the_first_column,
        is_one_step_late,
        is_one_step_early,
        has_averaged,
        has_picked_whole_steps,
        has_left_out_empty_ones,
        is_sorted_by_length,
        is_batch_first,
    ),
)
