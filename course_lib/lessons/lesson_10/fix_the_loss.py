"""10.2 Fix the loss: the check, and the common mistakes it recognizes."""

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

    def case(part: str, lengths: list[list[int]], says: str, zero: bool = False) -> Case:
        steps, sequences = max(map(max, lengths)) + 1, len(lengths[0])
        slopes = torch.randn(len(lengths), sequences, steps, generator=generator, dtype=torch.float64)
        if zero:
            slopes[:, -1, 0] = 0.0
        mask = (torch.arange(steps) < torch.tensor(lengths).unsqueeze(-1)).double()
        return Case(part, len(lengths), {"slopes": slopes, "mask": mask}, says)

    return [
        case("different lengths", [[1, 2], [3, 5]], "1 and 2 steps on one replica, 3 and 5 on the other"),
        case("different lengths", [[1, 1], [4, 5]], "2 steps on one replica, 9 on the other"),
        *(case("different lengths", lengths, f"lengths {lengths}") for lengths in draw(lengths_from, 5, seed)),
        case("different lengths", [[2, 3], [1, 4]], "2 and 3 steps, and 1 and 4, some with a loss of 0", zero=True),
        case("nothing on a replica", [[2, 3], [0, 0], [4, 1]], "no step that counts on replica 1 of 3"),
        case("nothing on a replica", [[0], [2], [5]], "no step that counts on replica 0 of 3"),
    ]


def lengths_from(chance: random.Random) -> list[list[int]]:
    replicas, sequences = chance.choice([2, 3]), chance.randint(1, 3)
    return [[chance.randint(1, 5) for _ in range(sequences)] for _ in range(replicas)]


def drive(answer: Callable, slopes: Tensor, mask: Tensor) -> dict:
    def all_reduce(number: Tensor) -> Tensor:
        total = torch.as_tensor(number, dtype=torch.float64).detach().clone()
        dist.all_reduce(total)
        return total

    rank = dist.get_rank()
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = answer(weight * slopes[rank], mask[rank].clone(), all_reduce)
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    return {"gradient": weight.grad}  # the judge sums: a collective here would match one that a replica left out


def judge(case: Case, values: list) -> str | None:
    if any(value["gradient"] is None for value in values):
        return "there is no gradient: what it returns does not depend on the weights"
    return differs(_total(values), _right(case), "the sum of the replicas' gradients")


def _total(values: list) -> Tensor:
    """Return the sum of the replicas' gradients, as TensorFlow computes it."""
    return torch.stack([value["gradient"] for value in values]).sum(dim=0)


def _right(case: Case) -> Tensor:
    slopes, mask = case.inputs["slopes"], case.inputs["mask"]
    return (slopes * mask).sum() / mask.sum()


def _is(case: Case, values: list, wrong: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Return whether the gradient is wrong, and equals `wrong(slopes, mask)`.

    Slopes and mask have the shape (replicas, sequences, steps).
    """
    value = _total(values)
    made = wrong(case.inputs["slopes"], case.inputs["mask"])
    return differs(value, made) is None and differs(value, _right(case)) is not None


def _sums(slopes: Tensor, mask: Tensor) -> Tensor:
    return (slopes * mask).sum(dim=(1, 2))


@observed
def is_a_constant_when_empty(case: Case, values: list) -> bool:
    """Only the replicas without steps that count have no gradient: what you return there does not depend on `losses`.
    The sum of their losses times the mask is 0 as well, and has a gradient of 0: divide it by the global count, too.
    """
    counts = case.inputs["mask"].sum(dim=(1, 2)).tolist()
    return 0 in counts and [value["gradient"] is None for value in values] == [count == 0 for count in counts]


@observed
def has_cut_the_graph(case: Case, values: list) -> bool:
    """Backward cannot reach the weights: something cuts the loss off from them, as `all_reduce`, `item()` and
    `detach()` do. Only the *count* goes through the all-reduce: the gradients are summed later.
    """
    return any(value["gradient"] is None for value in values)


@observed
@says(NO_MEAN_OF_NOTHING)
def divides_by_nothing(case: Case, values: list) -> bool:
    empty = (case.inputs["mask"].sum(dim=(1, 2)) == 0).any()
    return bool(empty) and bool(_total(values).isnan().any())


def takes_zeros_for_padding(case: Case, values: list) -> bool:
    """Steps with a loss of 0 are missing from the count. A loss may be 0, and its step still counts: the mask says
    which steps do.
    """
    return _is(case, values, lambda slopes, mask: (slopes * mask).sum() / (slopes * mask != 0).sum())


def is_a_mean_per_replica(case: Case, values: list) -> bool:
    """Each replica divides by its own count, and the framework sums: with n replicas the gradient is about n times too
    large, and a replica with few steps weighs as much as one with many. Divide by the count of all replicas.
    """
    return _is(case, values, lambda slopes, mask: (_sums(slopes, mask) / mask.sum(dim=(1, 2)).clamp(min=1)).sum())


@says(a_mean_of_means("a step", "replica"))
def is_a_mean_of_means(case: Case, values: list) -> bool:
    return _is(case, values, lambda slopes, mask: (_sums(slopes, mask) / mask.sum(dim=(1, 2)).clamp(min=1)).mean())


def is_scaled_as_for_ddp(case: Case, values: list) -> bool:
    """It is too large by a factor of the number of replicas: multiplying by that number is right where gradients are
    *averaged*, as in DDP. Here they are summed.
    """
    return _is(case, values, lambda slopes, mask: case.ranks * (slopes * mask).sum() / mask.sum())


def divides_twice(case: Case, values: list) -> bool:
    """It is too small by a factor of the number of replicas: nothing is averaged here, so divide only by the global
    count.
    """
    return _is(case, values, lambda slopes, mask: (slopes * mask).sum() / mask.sum() / case.ranks)


def counts_sequences(case: Case, values: list) -> bool:
    """You divide by the number of sequences, as `compute_average_loss` does: the update grows with their length. Divide
    by the number of steps that count.
    """
    return _is(case, values, lambda slopes, mask: (slopes * mask).sum() / mask[..., 0].numel())


def gives_each_sequence_a_vote(case: Case, values: list) -> bool:
    """Each sequence has one vote, which its steps share: a step of a short sequence weighs more. Sum over all steps
    first, and divide once.
    """

    def votes(slopes: Tensor, mask: Tensor) -> Tensor:
        means = (slopes * mask).sum(dim=2) / mask.sum(dim=2).clamp(min=1)
        return means.sum() / means.numel()

    return _is(case, values, votes)


def counts_padding(case: Case, values: list) -> bool:
    """The padding is in the count: divide by `mask.sum()` of all replicas, not by the size of the rectangle."""
    return _is(case, values, lambda slopes, mask: (slopes * mask).sum() / mask.numel())


def sums_padding(case: Case, values: list) -> bool:
    """The padding is in the sum: multiply the losses by the mask before you sum them."""
    whole = _is(case, values, lambda slopes, mask: slopes.sum() / mask.sum())
    return whole or _is(case, values, lambda slopes, mask: slopes.mean(dim=(1, 2)).sum())


def never_divides(case: Case, values: list) -> bool:
    """Without a division, the sum grows with the batch. Divide by the count of all replicas."""
    return _is(case, values, lambda slopes, mask: (slopes * mask).sum())


def leaves_when_empty(losses, mask, all_reduce):
    """A replica with no steps that count returns before the all-reduce, and the others wait forever. It has to
    contribute its count of 0.
    """
    if not mask.any():
        return 0 * losses.sum()
    return (losses * mask).sum() / all_reduce(mask.sum())


EXERCISE = Exercise(
    **texts("10.2"),
    cases=cases,
    drive=drive,
    private={"slopes": by_rank, "mask": by_rank},
    judge=judge,
    symptoms=(
        is_a_constant_when_empty,
        has_cut_the_graph,
        divides_by_nothing,
        takes_zeros_for_padding,
        is_a_mean_per_replica,
        is_a_mean_of_means,
        is_scaled_as_for_ddp,
        divides_twice,
        gives_each_sequence_a_vote,
        counts_sequences,
        counts_padding,
        sums_padding,
        never_divides,
    ),
    hanging=leaves_when_empty,
)
