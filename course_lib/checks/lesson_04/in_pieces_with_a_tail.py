"""04.1 In pieces, with a tail: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.checks.lesson_04 import FEATURES, examples, linear, whole


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, sizes: list[int], k: int) -> Case:
        weight = torch.randn(1, FEATURES, generator=generator, dtype=torch.float64)
        micro_batches = [examples(generator, size) for size in sizes]
        inputs = {"weight": weight, "micro_batches": micro_batches, "k": k}
        return Case(part, 1, inputs, f"micro-batches of {', '.join(map(str, sizes))} examples, k = {k}")

    return [
        case("equal pieces", [2, 2], 2),
        case("equal pieces", [2, 2, 2, 2], 2),
        case("unequal pieces", [1, 4, 3], 3),
        case("the tail", [3, 3, 3, 3, 2], 2),
    ]


def drive(answer, weight: Tensor, micro_batches: list, k: int):
    model = linear(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [float(loss) for loss in answer(model, optimizer, micro_batches, k)]
    return {"losses": losses, "weight": model.weight, "bias": model.bias}


def expected(case: Case) -> list:
    model, k, losses = linear(case.inputs["weight"]), case.inputs["k"], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, len(case.inputs["micro_batches"]), k):
        inputs, targets = whole(case.inputs["micro_batches"][start : start + k])
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [{"losses": losses, "weight": model.weight.detach(), "bias": model.bias.detach()}]


def _counted(model, optimizer, micro_batches, k, scale, *, zero_first=True, zero_each=False):
    """The loop that is found in many scripts: pieces are counted, and every k-th makes an update."""
    losses, total = [], 0.0
    for number, (inputs, targets) in enumerate(micro_batches):
        if zero_each or (zero_first and number % k == 0):
            optimizer.zero_grad()
        loss = scale((model(inputs) - targets).square())
        loss.backward()
        total += loss.item()
        if (number + 1) % k == 0:
            optimizer.step()
            losses.append(total)
            total = 0.0
    return losses


def updates_for_every_piece(model, optimizer, micro_batches, k):
    """You update after every micro-batch: that is training with small batches. Let k of them add up their gradients
    before the step.
    """
    losses = []
    for inputs, targets in micro_batches:
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def zeroes_every_time(model, optimizer, micro_batches, k):
    """The gradients are zeroed before every micro-batch, so that only the last one of an update is left of them.
    `backward()` adds to `.grad`: zero once per update.
    """
    return _counted(model, optimizer, micro_batches, k, lambda errors: errors.mean() / k, zero_each=True)


def sums_the_means(model, optimizer, micro_batches, k):
    """You add up the means of k micro-batches: loss and gradient are k times too large, and so is the step. Every
    micro-batch adds its share of one mean.
    """
    return _counted(model, optimizer, micro_batches, k, lambda errors: errors.mean())


def never_zeroes(model, optimizer, micro_batches, k):
    """The second update still has the first one's gradients in it: `backward()` adds to what is there. Zero once per
    update.
    """
    return _counted(model, optimizer, micro_batches, k, lambda errors: errors.mean() / k, zero_first=False)


def divides_by_k(model, optimizer, micro_batches, k):
    """Each micro-batch's mean, divided by k: that is a mean of means. An example in a small micro-batch weighs more
    than one in a large micro-batch. Divide each *sum* by the number of examples of the whole update.
    """
    losses = []
    for start in range(0, len(micro_batches), k):
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in micro_batches[start : start + k]:
            loss = (model(inputs) - targets).square().mean() / k
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


def divides_by_the_first(model, optimizer, micro_batches, k):
    """You divide by k times the size of the first micro-batch, as if all were as large. Count the examples of the
    update before its first backward pass.
    """
    losses = []
    for start in range(0, len(micro_batches), k):
        optimizer.zero_grad()
        pieces = micro_batches[start : start + k]
        totals = [
            (model(inputs) - targets).square().sum() / (len(pieces) * len(pieces[0][0])) for inputs, targets in pieces
        ]
        loss = sum(totals, start=torch.zeros(()))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def loses_the_tail(model, optimizer, micro_batches, k):
    """The last micro-batches are fewer than k, and no update is made from them: they are lost, or leak into the next
    epoch. They are an update, too, with a count of its own.
    """
    whole = len(micro_batches) // k * k
    losses = []
    for start in range(0, whole, k):
        pieces = micro_batches[start : start + k]
        count = sum(len(inputs) for inputs, _ in pieces)
        losses += _counted(model, optimizer, pieces, k, lambda errors, count=count: errors.sum() / count)
    return losses


EXERCISE = Exercise(
    number="04.1",
    title="In pieces, with a tail",
    answer="train_in_pieces",
    level="exercise",
    minutes=15,
    parts={"equal pieces": 1, "unequal pieces": 2, "the tail": 1},
    read="2 · The same gradient",
    hints=(
        "What must happen once per update, and what once per micro-batch? Write the two loops first.",
        "The mean over an update is a sum divided by a count. The sum can be added up piece by piece; when do you know "
        "the count?",
        "`micro_batches[start : start + k]` is shorter than k at the end, and that is all the care a tail needs.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        updates_for_every_piece,
        zeroes_every_time,
        sums_the_means,
        never_zeroes,
        divides_by_k,
        divides_by_the_first,
        loses_the_tail,
    ),
)
