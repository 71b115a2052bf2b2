"""Exercises of lesson 03, padding and masking: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import random

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, differs, same_as, seeded

# 03.1 -----------------------------------------------------------------------------------------------------------------


def last_state_cases(seed: int) -> list[Case]:
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


def drive_last_state(answer, outputs: Tensor, lengths: Tensor, weights: Tensor):
    outputs = outputs.clone().requires_grad_()
    states = answer(outputs, lengths)
    if states.requires_grad and states.shape == weights.shape:
        (states * weights).sum().backward()
    return {"states": states, "gradient": outputs.grad}


def right_last_state(case: Case) -> list:
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


LAST_STATE = Exercise(
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
    cases=last_state_cases,
    drive=drive_last_state,
    judge=same_as(right_last_state),
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

# 03.2 -----------------------------------------------------------------------------------------------------------------


def share_of_loss_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, lengths: list[list[int]], padding: float, says: str) -> Case:
        steps, sequences = max(map(max, lengths)), len(lengths[0])
        slopes = torch.randn(len(lengths), steps, sequences, generator=generator, dtype=torch.float64)
        mask = torch.arange(steps).view(1, -1, 1) < torch.tensor(lengths).unsqueeze(1)
        rest = torch.rand(slopes.shape, generator=generator, dtype=torch.float64).masked_fill(~mask, padding)
        return Case(part, len(lengths), {"slopes": slopes, "rest": rest, "mask": mask}, says)

    return [
        case("uneven counts", [[2, 1], [1, 2]], 0.5, "3 steps that count on each, and 1 of padding"),
        case("uneven counts", [[4, 3], [1, 1]], 0.5, "7 steps that count on rank 0, 2 on rank 1"),
        case("anything in the padding", [[2, 1], [2, 2]], float("nan"), "nan in the one cell of padding"),
        case("an empty share", [[2, 3], [0, 0], [1, 2]], 0.5, "no step that counts on rank 1"),
    ]


def drive_share_of_loss(answer, slopes: Tensor, rest: Tensor, mask: Tensor):
    rank = dist.get_rank()
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = answer(weight * slopes[rank] + rest[rank], mask[rank])
    loss.backward()
    return {"losses": loss, "gradients": weight.grad}


def judge_share_of_loss(case: Case, values: list) -> str | None:
    slopes, rest, mask = (case.inputs[name] for name in ("slopes", "rest", "mask"))
    right = {"gradients": slopes[mask].mean(), "losses": (2 * slopes + rest)[mask].mean()}
    for name, whole in right.items():
        mean = torch.stack([value[name] for value in values]).mean()
        difference = differs(mean, whole, name=f"the mean of the ranks' {name}")
        if difference:
            return difference
    return None


def own_mean(losses, mask):
    """Each rank divides by its own count: the mean of means. A step on a rank with few of them weighs more than one on
    a rank with many. Divide by the count of all ranks.
    """
    return losses[mask].sum() / mask.sum().clamp(min=1)


def counts_the_padding(losses, mask):
    """You divide by all cells, padding included: the more padding, the smaller the gradient. Only the steps that count
    are counted, `mask.sum()`.
    """
    count = torch.tensor(mask.numel())
    dist.all_reduce(count)
    return losses[mask].sum() * dist.get_world_size() / count


def adds_the_padding(losses, mask):
    """The count is right, but the sum has the padding in it: its losses are numbers like all others. Take the sum over
    the mask.
    """
    count = mask.sum()
    dist.all_reduce(count)
    return losses.sum() * dist.get_world_size() / count


def forgets_the_ranks(losses, mask):
    """The gradient is too small by the number of ranks: you divide by the count of all ranks, and then the mean over
    the ranks divides once more. Multiply to make up for it.
    """
    count = mask.sum()
    dist.all_reduce(count)
    return losses[mask].sum() / count


def never_divides(losses, mask):
    """A sum of losses grows with the batch, and the step with it. Divide by the number of steps that count, on all
    ranks.
    """
    return losses[mask].sum()


def makes_a_new_tensor(losses, mask):
    """The value may be right, but `backward()` finds no way from it to the weights: it went through `item()` or
    `torch.tensor`. Only counts may leave the graph; the sum of losses stays in it.
    """
    count = mask.sum()
    dist.all_reduce(count)
    return torch.tensor(losses[mask].sum().item() * dist.get_world_size() / count.item())


def multiplies_by_the_mask(losses, mask):
    """Zero times nan is nan: one bad cell of padding spoils the sum, though the mask is 0 there. Choose the steps that
    count, `losses[mask]`, instead of multiplying the others away.
    """
    count = mask.sum()
    dist.all_reduce(count)
    return (losses * mask).sum() * dist.get_world_size() / count


def skips_when_empty(losses, mask):
    """A rank whose share is empty leaves before the all-reduce, and the others wait for it for ever. It has something
    to say, too: that its count is 0.
    """
    if not mask.any():
        return losses.sum() * 0
    count = mask.sum()
    dist.all_reduce(count)
    return losses[mask].sum() * dist.get_world_size() / count


SHARE_OF_LOSS = Exercise(
    number="03.2",
    title="One loss, divided once",
    answer="share_of_loss",
    level="exercise",
    minutes=15,
    parts={"uneven counts": 2, "anything in the padding": 1, "an empty share": 1},
    read="3 · The mean of means",
    hints=(
        "Write down the gradient of one process: the sum over all ranks' steps, divided by what? Which part of it does "
        "a rank not know?",
        "The count is a number without a gradient: all-reduce it. The sum of losses needs no message, the gradients "
        "travel later.",
        "Afterwards the gradients are averaged, which divides by the number of ranks. You must have multiplied by it.",
    ),
    cases=share_of_loss_cases,
    drive=drive_share_of_loss,
    judge=judge_share_of_loss,
    mistakes=(
        own_mean,
        counts_the_padding,
        adds_the_padding,
        forgets_the_ranks,
        never_divides,
        makes_a_new_tensor,
        multiplies_by_the_mask,
    ),
    hanging=skips_when_empty,
)

# 03.3 -----------------------------------------------------------------------------------------------------------------

MOST_PADDING = 0.15
MOST_APART = 0.25


def batches_cases(seed: int) -> list[Case]:
    shuffled = random.Random(seed)

    def case(part: str, ranks: int, lengths: list[int], cells: int) -> Case:
        says = f"at most {cells} cells, lengths {lengths if len(lengths) < 12 else f'{min(lengths)} to {max(lengths)}'}"
        return Case(part, ranks, {"lengths": lengths, "cells": cells}, says)

    length = 2 * shuffled.randint(2, 6)
    mixed = [step for step in range(2, 26) for _ in range(3)]
    long_and_short = [length for _ in range(6) for length in (20, 3)]
    shuffled.shuffle(mixed)
    return [
        case("equal counts", 2, [length] * 6, 5 * length // 2),
        case("equal counts", 2, long_and_short, 40 + shuffled.randint(0, 9)),
        case("little padding", 2, mixed, 100 + shuffled.randint(0, 9)),
        case("alike on all ranks", 3, mixed, 100 + shuffled.randint(0, 9)),
    ]


def drive_batches(answer, lengths: list[int], cells: int):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return [list(map(int, batch)) for batch in answer(lengths, cells, rank, ranks)]


def judge_batches(case: Case, parts: list) -> str | None:
    lengths, limit = case.inputs["lengths"], case.inputs["cells"]
    wrong = _given_out(parts, len(lengths))
    if wrong:
        return wrong
    cells = [[len(batch) * max((lengths[index] for index in batch), default=0) for batch in part] for part in parts]
    largest = max(map(max, cells))
    if largest > limit:
        return f"a batch has {largest} cells (sequences times the longest of them), more than {limit}"
    return _padded(lengths, cells) if case.part == "little padding" else _apart(cells, limit)


def _given_out(parts: list, count: int) -> str | None:
    """Whether every sequence is there once, in equally many batches on every rank."""
    seen = sorted(index for part in parts for batch in part for index in batch)
    missing = sorted(set(range(count)) - set(seen))
    if missing:
        return f"nobody has sequence {missing[0]} (of {count})"
    if len(seen) > count:
        twice = next(index for index in seen if seen.count(index) > 1)
        return f"sequence {twice} is given out {seen.count(twice)} times"
    counts = [len(part) for part in parts]
    if len(set(counts)) > 1:
        return f"the ranks have {counts} batches: some would wait for a batch that others do not have"
    return None


def _padded(lengths: list[int], cells: list[list[int]]) -> str | None:
    padding = 1 - sum(lengths) / sum(map(sum, cells))
    return f"{padding:.0%} of all cells are padding" if padding > MOST_PADDING else None


def _apart(cells: list[list[int]], limit: int) -> str | None:
    for number, ranks in enumerate(list(zip(*cells, strict=True))[:-1]):
        if max(ranks) - min(ranks) > MOST_APART * limit:
            return f"in update {number} the ranks have {list(ranks)} cells: some wait for others"
    return None


def _by_length(lengths, indices):
    return sorted(indices, key=lambda index: -lengths[index])


def _filled(lengths, order, cells):
    """Batches of neighbours, each as full as the limit allows, whoever is the longest."""
    batches = [[]]
    for index in order:
        longest = max(lengths[other] for other in [*batches[-1], index])
        if (len(batches[-1]) + 1) * longest > cells:
            batches.append([])
        batches[-1].append(index)
    return batches


def deals_out_batches(lengths, cells, rank, ranks):
    """You cut everything into batches and deal these out one by one: unless their number is a multiple of the ranks,
    some rank has one fewer, and the others hang in the last update. Decide on what *all* ranks take in an update, then
    deal that out.
    """
    return _filled(lengths, _by_length(lengths, range(len(lengths))), cells)[rank::ranks]


def drops_the_tail(lengths, cells, rank, ranks):
    """The counts are equal, because the last batches are thrown away: their sequences, here the shortest ones, are
    never trained on. A share may be smaller than the others, or even empty.
    """
    batches = _filled(lengths, _by_length(lengths, range(len(lengths))), cells)
    return batches[: len(batches) // ranks * ranks][rank::ranks]


def repeats_to_even_out(lengths, cells, rank, ranks):
    """To make the counts equal you give some sequences out twice. They weigh twice in the gradient; a share may rather
    be empty.
    """
    batches = _filled(lengths, _by_length(lengths, range(len(lengths))), cells)
    batches += batches[: -len(batches) % ranks]
    return batches[rank::ranks]


def cuts_its_own(lengths, cells, rank, ranks):
    """Each rank takes its sequences first and cuts batches from them on its own. One that has drawn the long sequences
    needs more batches than the others, and hangs. Sort and cut what all ranks have, and deal out last.
    """
    return _filled(lengths, _by_length(lengths, range(len(lengths))[rank::ranks]), cells)


def counts_tokens(lengths, cells, rank, ranks):
    """You limit the *real* steps of a batch. A rectangle has padding, too: its cells are its sequences times the
    longest of them, and these must fit.
    """
    batches = [[]]
    for index in _by_length(lengths, range(len(lengths))):
        if sum(lengths[other] for other in [*batches[-1], index]) > cells:
            batches.append([])
        batches[-1].append(index)
    batches += [[] for _ in range(-len(batches) % ranks)]
    return batches[rank::ranks]


def does_not_sort(lengths, cells, rank, ranks):
    """The sequences come as they are, so that a long one makes a whole batch of short ones long: much of what you
    compute is padding. Put sequences of similar length together.
    """
    batches = _filled(lengths, range(len(lengths)), cells)
    batches += [[] for _ in range(-len(batches) % ranks)]
    return batches[rank::ranks]


def limits_all_ranks_together(lengths, cells, rank, ranks):
    """You fill the limits of all ranks together, and then deal out: where the number of sequences is no multiple of
    the ranks, one rank gets more than fits. How many sequences as long as the longest fit on *one* rank? An update
    takes so many for each.
    """
    updates = _filled(lengths, _by_length(lengths, range(len(lengths))), cells * ranks)
    return [update[rank::ranks] for update in updates]


def long_ones_to_rank_0(lengths, cells, rank, ranks):
    """One rank has the long sequences and needs many batches; another has the short ones, and soon only empty batches:
    it waits. Every rank should have some of each length in every update.
    """
    order = _by_length(lengths, range(len(lengths)))
    each = -(-len(order) // ranks)
    parts = [_filled(lengths, order[start : start + each], cells) for start in range(0, len(order), each)]
    return parts[rank] + [[]] * (max(map(len, parts)) - len(parts[rank]))


BATCHES = Exercise(
    number="03.3",
    title="Batches that cannot hang",
    answer="my_batches",
    level="build",
    minutes=30,
    parts={"equal counts": 2, "little padding": 1, "alike on all ranks": 2},
    read="4 · Less padding: bucketing by length",
    hints=(
        "Every rank knows all lengths. Let each work out the updates of *all* ranks, and pick its own part last.",
        "Sort by length, longest first. The first sequence of an update is its longest: how many of that length fit "
        "into `cells` on one rank? And on all of them?",
        "`update[rank::ranks]` deals an update out, so that neighbours in length go to different ranks.",
    ),
    cases=batches_cases,
    drive=drive_batches,
    judge=judge_batches,
    mistakes=(
        deals_out_batches,
        drops_the_tail,
        repeats_to_even_out,
        cuts_its_own,
        counts_tokens,
        does_not_sort,
        limits_all_ranks_together,
        long_ones_to_rank_0,
    ),
)

EXERCISES = (LAST_STATE, SHARE_OF_LOSS, BATCHES)
