"""03.1 The last valid step: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, same_as, seeded


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, steps: int, lengths: list[int]) -> Case:
        outputs, weights = (
            torch.randn(shape, generator=generator, dtype=torch.float64)
            for shape in ((steps, len(lengths), 2), (len(lengths), 2))
        )
        inputs = {"outputs": outputs, "lengths": torch.tensor(lengths), "weights": weights}
        return Case(part, 1, inputs, f"{steps} steps, sequences of lengths {lengths}, 2 numbers each")

    return [
        case("the last valid step", 3, [2, 3, 1]),
        case("the last valid step", 5, [1, 5, 4, 2]),
        case("sequences without steps", 4, [0, 2, 4]),
    ]


def drive(answer, outputs: Tensor, lengths: Tensor, weights: Tensor):
    outputs = outputs.clone().requires_grad_()
    states = answer(outputs, lengths)
    if states.requires_grad and states.shape == weights.shape:
        (states * weights).sum().backward()
    return {"states": states, "gradient": outputs.grad}


def expected(case: Case) -> list:
    outputs, lengths, weights = (case.inputs[name] for name in ("outputs", "lengths", "weights"))
    states, gradient = torch.zeros_like(weights), torch.zeros_like(outputs)
    for sequence, length in enumerate(lengths.tolist()):
        if length:
            states[sequence] = outputs[length - 1, sequence]
            gradient[length - 1, sequence] = weights[sequence]
    return [{"states": states, "gradient": gradient}]


def last_column(outputs, lengths):
    """You read the last column of the rectangle. For every sequence but the longest that is the state after the LSTM
    has gone on over padding. Each sequence has an end of its own: `lengths` says where.
    """
    return outputs[-1]


def one_step_late(outputs, lengths):
    """Steps count from 0: a sequence of length 3 ends at step 2. You read the step after the end, which is padding,
    and for the longest sequence there is none.
    """
    return outputs[lengths, torch.arange(len(lengths))]


def batch_first(outputs, lengths):
    """You take the first dimension for the sequences. In this course it is time: `outputs[step, sequence]`. Where
    there are as many steps as sequences, nothing warns you.
    """
    return outputs[torch.arange(len(lengths)), lengths - 1]


def every_sequence_at_every_end(outputs, lengths):
    """One index picks whole steps: you get all sequences at the end of each one. Two things must be chosen together,
    the step and the sequence.
    """
    return outputs[lengths - 1]


def forgets_to_sort_back(outputs, lengths):
    """The states are right, and in the order of the lengths: row 0 belongs to the longest sequence. Whoever sorts must
    sort back, or every target meets a stranger's state.
    """
    order = lengths.argsort(descending=True)
    return outputs[lengths[order] - 1, order]


def cut_from_the_graph(outputs, lengths):
    """The numbers are right, but nothing can be learned through them: they were taken out of the graph (`detach`,
    `.data`, `.tolist()`). Index the tensor itself.
    """
    ends = torch.stack([outputs[max(length - 1, 0), i] for i, length in enumerate(lengths.tolist())])
    return (ends * (lengths > 0).unsqueeze(1)).detach()


def wraps_around(outputs, lengths):
    """A sequence without steps has no last one: its length minus 1 is -1, and that reads the last column. Its state is
    still zero.
    """
    return outputs[lengths - 1, torch.arange(len(lengths))]


EXERCISE = Exercise(
    number="03.1",
    title="The last valid step",
    answer="last_states",
    level="warm-up",
    minutes=10,
    parts={"the last valid step": 2, "sequences without steps": 1},
    read="1 · Which state did you read?",
    hints=(
        "At which step, counted from 0, does a sequence of length 3 end?",
        "`outputs[steps, sequences]` with two tensors of indices, as long as each other, picks one cell for each pair.",
        "What does step -1 mean to Python? Ask it of a sequence of length 0, and put zeros in its place.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        last_column,
        one_step_late,
        batch_first,
        every_sequence_at_every_end,
        forgets_to_sort_back,
        cut_from_the_graph,
        wraps_around,
    ),
)
