"""08.3 One rank sees a nan: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, differs, same_as, seeded
from course_lib.checks.private import by_rank
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import observed

NAN, INF = float("nan"), float("inf")
LARGE = 1e30  # in float32 its square is infinite, but not its sum over the ranks
RATE = 0.1


def cases(seed: int) -> list[Case]:
    generator, dice = seeded(seed), random.Random(seed)

    def case(part: str, ranks: int, updates: int, bad: dict[tuple[int, int], float]) -> Case:
        """Make a case with random gradients, in which `bad[rank, update]` replaces one number."""
        dtype = torch.float32 if LARGE in map(abs, bad.values()) else torch.float64
        gradients = torch.randn(ranks, updates, 2, generator=generator, dtype=dtype)
        for (rank, update), value in bad.items():
            gradients[rank, update, dice.randrange(2)] = value
        where = ", ".join(f"{value} on rank {rank} in update {update}" for (rank, update), value in bad.items())
        says = f"{updates} updates, counted from 0; {where or 'all finite'}"
        return Case(part, ranks, {"gradients": gradients}, says)

    def drawn(ranks: int, updates: int, value: float) -> dict[tuple[int, int], float]:
        """Return bad values on one rank in each of three updates, two of them in a row; the last update is good."""
        first = dice.randrange(updates - 4)
        ranks_hit = [dice.randrange(1, ranks), 0, dice.randrange(ranks)]
        places = zip(ranks_hit, (first, first + 1, first + 3), strict=True)
        return dict.fromkeys(places, value)

    return [
        case("a nan", 2, 2, {}),
        case("a nan", 2, 3, {(0, 1): NAN, (1, 1): NAN}),
        case("a nan", 2, 1, {(0, 0): NAN, (1, 0): NAN}),
        case("a nan", 3, 5, {(rank, update): NAN for update in (0, 4) for rank in range(3)}),
        case("a nan on one rank", 2, 3, {(0, 1): NAN}),
        case("a nan on one rank", 2, 3, {(1, 1): NAN}),
        case("a nan on one rank", 3, 3, {(1, 0): NAN}),
        case("a nan on one rank", 3, 3, {(0, 2): NAN, (2, 2): NAN}),
        case("a nan on one rank", 2, 3, {(0, 0): NAN, (1, 2): NAN}),
        case("a nan on one rank", 3, 8, drawn(3, 8, NAN)),
        case("an infinite number", 2, 3, {(1, 1): INF}),
        case("an infinite number", 2, 3, {(0, 1): -INF}),
        case("an infinite number", 2, 3, {(0, 1): INF, (1, 1): -INF}),
        case("an infinite number", 3, 8, drawn(3, 8, dice.choice((INF, -INF)))),
        case("an infinite number", 2, 2, {(1, 1): LARGE}),  # finite
        case("an infinite number", 3, 4, {(0, 1): INF, (2, 2): -LARGE}),
    ]


def drive(answer, gradients: Tensor):
    return {"weights": answer(torch.ones(2, dtype=gradients.dtype), list(gradients[dist.get_rank()].clone()), RATE)}


def expected(case: Case) -> list:
    return [{"weights": _weights(case, lambda of_all: of_all.isfinite().all())}] * case.ranks


def _weights(case: Case, makes: Callable, mean: Callable = lambda of_all: of_all.mean(dim=0)) -> list[Tensor]:
    """Return the weights after each update; an update is applied if `makes` returns true for all ranks' gradients."""
    weight, weights = torch.ones(2, dtype=torch.float64), []
    for gradients in case.inputs["gradients"].unbind(dim=1):
        if makes(gradients):
            weight = weight - RATE * mean(gradients)
        weights.append(weight)
    return weights


def _all_are(values: list, right: list) -> bool:
    return all(differs(value["weights"], right) is None for value in values)


def _finite(case: Case) -> list[bool]:
    """Return, for each update, whether all ranks' gradients are finite."""
    return case.inputs["gradients"].isfinite().all(dim=2).all(dim=0).tolist()


@observed
def too_few(case: Case, values: list) -> bool:
    """There are fewer weights than updates. A bad gradient skips only *one* update, and the unchanged weights still
    belong in the list.
    """
    return any(len(value["weights"]) < len(_finite(case)) for value in values)


def same_tensor(case: Case, values: list) -> bool:
    """All weights in the list are the last ones: the list holds one tensor many times, and every update changes it in
    place. Append a copy, or create a new tensor in each update.
    """
    right = expected(case)[0]["weights"]
    moved = any(differs(weights, right[-1]) for weights in right)
    return moved and _all_are(values, [right[-1]] * len(right))


@observed
def ranks_disagree(case: Case, values: list) -> bool:
    """The ranks' weights are no longer the same. All ranks must add up the same gradients and skip the same updates:
    decide together.
    """
    return any(differs(value["weights"], values[0]["weights"]) for value in values[1:])


@observed
def infinite_is_no_nan(case: Case, values: list) -> bool:
    """An infinite gradient is not a nan, but it makes the weights infinite or nan, too. Test for good numbers, with
    `isfinite`, on every rank.
    """
    gradients = case.inputs["gradients"]
    return not gradients.isnan().any() and not _stay_finite(values)


@observed
def never_skips(case: Case, values: list) -> bool:
    """All ranks had a nan in the same update, and their weights are nan from then on. Look at the gradient before you
    use it.
    """
    bad = ~case.inputs["gradients"].isfinite().all(dim=2)
    return bool((bad.all(dim=0) == bad.any(dim=0)).all()) and not _stay_finite(values)


def one_is_enough(case: Case, values: list) -> bool:
    """A nan on one rank got into the sum, and through it into all ranks' weights. Whether to skip depends on *all*
    ranks: it's not enough to look at one, or to skip only if every one has a nan.
    """
    return not _stay_finite(values)


def _stay_finite(values: list) -> bool:
    return all(bool(weights.isfinite().all()) for value in values for weights in value["weights"])


@observed
def made_up(case: Case, values: list) -> bool:
    """The weights changed in an update in which a rank's gradient was bad. All ranks must skip such an update: with
    zeros in place of the bad gradient, or without that rank, it would be the update of a different batch.
    """
    weights = [torch.ones(2, dtype=torch.float64), *values[0]["weights"]]
    pairs = zip(weights[:-1], weights[1:], _finite(case), strict=True)
    return any(not finite and differs(after, before) for before, after, finite in pairs)


@observed
def skips_too_much(case: Case, values: list) -> bool:
    """An update was skipped although all ranks' gradients were finite. A bad gradient in an earlier update says nothing
    about this one.
    """
    return any(_skipped_for_nothing(case, values)) and not takes_large_for_infinite(case, values)


@observed
def takes_large_for_infinite(case: Case, values: list) -> bool:
    """An update with large but finite gradients was skipped. The square of a finite number may be infinite, and so may
    a norm: test the numbers themselves.
    """
    large = (case.inputs["gradients"].abs() == LARGE).any(dim=2).any(dim=0).tolist()
    skipped = _skipped_for_nothing(case, values)
    return any(skipped) and all(size for size, skip in zip(large, skipped, strict=True) if skip)


def _skipped_for_nothing(case: Case, values: list) -> list[bool]:
    """Return, for each update, whether it was skipped though all ranks' gradients were finite."""
    weights = [torch.ones(2, dtype=torch.float64), *values[0]["weights"]]
    gradients = case.inputs["gradients"].mean(dim=0)
    updates = zip(weights[:-1], weights[1:], gradients, _finite(case), strict=True)
    return [
        finite and differs(after, before) is None and differs(before - RATE * gradient, before) is not None
        for before, after, gradient, finite in updates
    ]


def sum_not_mean(case: Case, values: list) -> bool:
    """The updates subtract the sum of the ranks' gradients. Divide it by the number of ranks."""
    return _all_are(values, _weights(case, lambda of_all: of_all.isfinite().all(), lambda of_all: of_all.sum(dim=0)))


def own_gradients(case: Case, values: list) -> bool:
    """Each rank subtracts its own gradient. An update subtracts the mean of all ranks' gradients."""
    return all(
        differs(
            value["weights"],
            _weights(case, lambda of_all: of_all.isfinite().all(), lambda of_all, rank=rank: of_all[rank]),
        )
        is None
        for rank, value in enumerate(values)
    )


def decides_alone(weight, gradients, rate):
    """Each rank decides for itself: the rank with the nan makes one fewer all-reduce than the others."""
    weights = []
    for gradient in gradients:
        if gradient.isfinite().all():
            dist.all_reduce(gradient)
            weight = weight - rate * gradient / dist.get_world_size()
        weights.append(weight)
    return weights


EXERCISE = Exercise(
    **texts("08.3"),
    cases=cases,
    drive=drive,
    private={"gradients": by_rank},
    judge=same_as(expected),
    symptoms=(
        too_few,
        same_tensor,
        own_gradients,
        ranks_disagree,
        infinite_is_no_nan,
        never_skips,
        one_is_enough,
        made_up,
        takes_large_for_infinite,
        skips_too_much,
        sum_not_mean,
    ),
    hanging=decides_alone,
)
