"""03.2 One loss, divided once: the check, and the wrong answers it recognizes."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, differs, draw, seeded
from course_lib.checks.private import by_rank
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import NO_MEAN_OF_NOTHING, a_mean_of_means, observed, says


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, lengths: list[list[int]], padding: float, says: str) -> Case:
        steps, sequences = max(map(max, lengths)), len(lengths[0])
        slopes = torch.randn(len(lengths), steps, sequences, generator=generator, dtype=torch.float64)
        mask = torch.arange(steps).view(1, -1, 1) < torch.tensor(lengths).unsqueeze(1)
        rest = torch.rand(slopes.shape, generator=generator, dtype=torch.float64).masked_fill(~mask, padding)
        return Case(part, len(lengths), {"slopes": slopes, "rest": rest, "mask": mask}, says)

    return [
        case("uneven counts", [[2, 1], [1, 2]], 0.5, "3 steps that count on each rank, and 1 of padding"),
        case("uneven counts", [[4, 3], [1, 1]], 0.5, "7 steps that count on rank 0, 2 on rank 1"),
        *(case("uneven counts", lengths, 0.5, f"lengths {lengths}") for lengths in draw(lengths_from, 6, seed)),
        case("uneven counts", [[200, 90], [7, 3]], 0.5, "300 steps that count"),
        case("anything in the padding", [[2, 1], [2, 2]], float("nan"), "nan in the one cell of padding"),
        case("anything in the padding", [[1, 3], [2, 2]], float("inf"), "infinity in the padding"),
        case("an empty share", [[2, 3], [0, 0], [1, 2]], 0.5, "no step that counts on rank 1"),
        case("an empty share", [[0], [0], [3]], float("nan"), "steps that count only on rank 2, nan elsewhere"),
        case("an empty share", [[0, 0], [0, 1], [0, 1]], 0.5, "2 steps that count, fewer than there are ranks"),
        case("an empty share", [[1], [0], [0]], 0.5, "only one step that counts on all ranks together"),
    ]


def lengths_from(chance: random.Random) -> list[list[int]]:
    """Return the lengths of the sequences of two or three ranks, the same number on each."""
    ranks, sequences = chance.choice([2, 3]), chance.randint(1, 3)
    return [[chance.randint(1, 5) for _ in range(sequences)] for _ in range(ranks)]


def drive(answer, slopes: Tensor, rest: Tensor, mask: Tensor):
    rank = dist.get_rank()
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = answer(weight * slopes[rank] + rest[rank], mask[rank])
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    return {"losses": loss, "gradients": weight.grad}


def judge(case: Case, values: list) -> str | None:
    if any(value["gradients"] is None for value in values):
        return "backward() finds no path from what it returns to the weights"
    for name, whole in expected(case).items():
        difference = differs(_mean(values, name), whole, name=f"the mean of the ranks' {name}")
        if difference:
            return difference
    return None


def _mean(values: list, name: str) -> Tensor:
    return torch.stack([value[name].double() for value in values]).mean()


def expected(case: Case) -> dict[str, Tensor]:
    slopes, losses, mask = _numbers(case)
    return {"gradients": slopes[mask].mean(), "losses": losses[mask].mean()}


def _numbers(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Return each cell's gradient, its loss, and whether it counts."""
    slopes, rest, mask = (case.inputs[name] for name in ("slopes", "rest", "mask"))
    return slopes, 2 * slopes + rest, mask


def _is_like(case: Case, values: list, made: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Return whether the gradients, or the losses, are wrong and equal to what `made` computes from the cells."""
    slopes, losses, mask = _numbers(case)
    wrong = {"gradients": made(slopes, mask), "losses": made(losses, mask)}
    right = expected(case)
    return any(
        differs(_mean(values, name), right[name]) and differs(_mean(values, name), wrong[name]) is None
        for name in right
    )


def _sums(cells: Tensor, mask: Tensor) -> Tensor:
    """Return the sum over each rank's cells that count."""
    return cells.masked_fill(~mask, 0.0).flatten(1).sum(dim=1)


@observed
def is_a_constant_if_empty(case: Case, values: list) -> bool:
    """A rank without steps that count returns a number that doesn't depend on any weight, so `backward()` raises an
    error there. The sum over no steps is also 0, but it has a graph: `losses.masked_fill(~mask, 0).sum()`.
    """
    constant = [not isinstance(value["gradients"], Tensor) for value in values]
    return any(constant) and constant == [not mask.any() for mask in case.inputs["mask"]]


@observed
def has_cut_the_graph(case: Case, values: list) -> bool:
    """`backward()` finds no path from what you return to the weights: somewhere you left the graph, for example through
    `item()`, `detach()` or `torch.tensor`. Only counts may leave the graph; the sum of losses must stay in it.
    """
    return any(not isinstance(value["gradients"], Tensor) for value in values)


def has_divided_by_more_than_there_are(case: Case, values: list) -> bool:
    """You divide by more steps than count. Over all ranks together, at least 1 step counts, so the total needs no lower
    limit; the count of one rank, or the mean per rank, may be less than 1: leave it as it is.
    """
    counts = case.inputs["mask"].flatten(1).sum(dim=1)
    if counts.all() and counts.sum() >= case.ranks:
        return False
    too_many = case.ranks, int(counts.clamp(min=1).sum())
    return any(
        _is_like(case, values, lambda cells, mask, count=count: _sums(cells, mask).sum() / count) for count in too_many
    )


@says(NO_MEAN_OF_NOTHING)
def has_divided_by_nothing(case: Case, values: list) -> bool:
    if not case.inputs["rest"].isfinite().all():
        return False  # the padding may have made it nan
    empty = [not mask.any() for mask in case.inputs["mask"]]
    nans = [bool(value["losses"].isnan()) for value in values]
    return any(empty) and nans == empty


def has_let_padding_in(case: Case, values: list) -> bool:
    """One bad cell of padding spoils the result: you add it, or multiply it by a mask of 0. Zero times nan is nan, and
    so is zero times infinity. Put zeros there, `losses.masked_fill(~mask, 0)`, instead of multiplying by 0.
    """
    found = _mean(values, "losses"), _mean(values, "gradients")
    return not case.inputs["rest"].isfinite().all() and not all(number.isfinite() for number in found)


def has_counted_in_a_byte(case: Case, values: list) -> bool:
    """Your count wraps around: an integer of 8 bits holds no more than 256 different numbers. Count in int64, as
    `mask.sum()` does.
    """
    count = int(case.inputs["mask"].sum())
    return count > 256 and _is_like(case, values, lambda cells, mask: cells[mask].sum() / (count % 256))


def has_left_out_the_empty_ranks(case: Case, values: list) -> bool:
    """You multiply by the number of ranks on which steps count. The mean over the ranks divides by the number of *all*
    ranks: multiply by that.
    """
    filled = int(case.inputs["mask"].flatten(1).any(dim=1).sum())
    return filled < case.ranks and _is_like(case, values, lambda cells, mask: cells[mask].mean() * filled / case.ranks)


@says(a_mean_of_means("a step", "rank"))
def is_a_mean_of_means(case: Case, values: list) -> bool:
    def made(cells: Tensor, mask: Tensor) -> Tensor:
        return (_sums(cells, mask) / mask.flatten(1).sum(dim=1).clamp(min=1)).mean()

    return _is_like(case, values, made)


def has_divided_by_the_largest(case: Case, values: list) -> bool | None:
    """Every rank divides by one rank's count, the largest. Divide by the sum of all ranks' counts, and multiply by the
    number of ranks.
    """
    largest, cells_of_one = _largest(case)
    made = _is_like(case, values, lambda cells, mask: _sums(cells, mask).mean() / largest)
    return None if made and largest == cells_of_one else made


def has_counted_the_padding(case: Case, values: list) -> bool | None:
    """You divide by all cells, padding included: the more padding, the smaller the gradient. Divide by the number of
    steps that count, `mask.sum()`.
    """
    largest, cells_of_one = _largest(case)
    if _is_like(case, values, lambda cells, mask: _sums(cells, mask).mean() / cells_of_one):
        return None if largest == cells_of_one else True  # a rank without padding has that many steps that count
    return _is_like(case, values, lambda cells, mask: _sums(cells, mask).sum() / mask.numel())


def _largest(case: Case) -> tuple[int, int]:
    """Return the largest count of a rank, and the number of cells that a rank has."""
    mask = case.inputs["mask"]
    return int(mask.flatten(1).sum(dim=1).max()), mask[0].numel()


def has_counted_sequences(case: Case, values: list) -> bool:
    """You count sequences, but the loss is a mean over steps: a long sequence has many of them. Divide by the number of
    steps that count, `mask.sum()`.
    """
    return _is_like(case, values, lambda cells, mask: _sums(cells, mask).sum() / mask.any(dim=1).sum())


def returns_the_loss_of_all(case: Case, values: list) -> bool:
    """The loss is right, but its gradient is too small by a factor of the number of ranks: each rank returns the loss
    of all, and only its own part has a graph. Return only this rank's part, scaled so that the mean over the ranks is
    right.
    """
    right = expected(case)
    loss, gradient = (differs(_mean(values, name), right[name]) is None for name in ("losses", "gradients"))
    return loss and not gradient and differs(case.ranks * _mean(values, "gradients"), right["gradients"]) is None


def has_forgotten_the_ranks(case: Case, values: list) -> bool:
    """The result is too small by a factor of the number of ranks: you divide by the count of all ranks, and then the
    mean over the ranks divides again. Multiply to compensate.
    """
    return _is_like(case, values, lambda cells, mask: cells[mask].mean() / case.ranks)


def has_multiplied_twice(case: Case, values: list) -> bool | None:
    """The result is too large by a factor of the number of ranks: the mean over the ranks divides by their number once,
    so multiply once, and don't add up losses that are already added up.
    """
    uneven = len({int(mask.sum()) for mask in case.inputs["mask"]}) > 1  # if even, a rank's own count does the same
    return _is_like(case, values, lambda cells, mask: cells[mask].mean() * case.ranks) if uneven else None


def has_never_divided(case: Case, values: list) -> bool:
    """A sum of losses grows with the batch, and the update with it. Divide by the number of steps that count, on all
    ranks.
    """
    mean = _is_like(case, values, lambda cells, mask: _sums(cells, mask).mean())
    return mean or _is_like(case, values, lambda cells, mask: _sums(cells, mask).sum())


def has_hidden_the_padding(case: Case, values: list) -> bool:
    """The loss is right, but its gradient includes the padding's: you overwrote the padding where autograd doesn't see
    it (`.data`, `detach()`, `no_grad()`). Use `losses.masked_fill(~mask, 0)`.
    """
    loss_is_right = differs(_mean(values, "losses"), expected(case)["losses"]) is None
    return loss_is_right and has_added_the_padding(case, values)


def has_added_the_padding(case: Case, values: list) -> bool:
    """The count is right, but the sum includes the padding, whose losses are numbers like any other. Sum only where the
    mask is true.
    """
    return _is_like(case, values, lambda cells, mask: cells.nan_to_num().sum() / mask.sum())


def skips_when_empty(losses, mask):
    """A rank whose share is empty returns before the all-reduce, and the others wait for it forever. It has something
    to send, too: a count of 0.
    """
    if not mask.any():
        return losses.sum() * 0
    count = mask.sum()
    dist.all_reduce(count)
    return losses[mask].sum() * dist.get_world_size() / count


EXERCISE = Exercise(
    **texts("03.2"),
    cases=cases,
    drive=drive,
    private={"slopes": by_rank, "rest": by_rank, "mask": by_rank},
    judge=judge,
    symptoms=(
        is_a_constant_if_empty,
        has_cut_the_graph,
        has_divided_by_nothing,
        has_let_padding_in,
        has_counted_in_a_byte,
        has_divided_by_more_than_there_are,
        has_left_out_the_empty_ranks,
        is_a_mean_of_means,
        returns_the_loss_of_all,
        has_forgotten_the_ranks,
        has_multiplied_twice,
        has_divided_by_the_largest,
        has_counted_the_padding,
        has_counted_sequences,
        has_never_divided,
        has_hidden_the_padding,
        has_added_the_padding,
    ),
    hanging=skips_when_empty,
)
