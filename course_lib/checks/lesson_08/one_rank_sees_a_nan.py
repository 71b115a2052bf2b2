"""08.3 One rank sees a nan: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, same_as, seeded

RATE = 0.1


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, bad: list[int], value: float) -> Case:
        gradients = torch.randn(ranks, 3, 2, generator=generator, dtype=torch.float64)
        gradients[bad, 1, 1] = value
        says = f"3 updates; in the second, {value} on {' and '.join(f'rank {rank}' for rank in bad)}"
        return Case(part, ranks, {"gradients": gradients}, says)

    return [
        case("a nan", 2, [0, 1], float("nan")),
        case("a nan on one rank", 2, [0], float("nan")),
        case("a nan on one rank", 3, [1], float("nan")),
        case("an infinite number", 2, [1], float("inf")),
    ]


def drive(answer, gradients: Tensor):
    weights = answer(torch.ones(2, dtype=torch.float64), list(gradients[dist.get_rank()].clone()), RATE)
    return {"weights": [weight.clone() for weight in weights]}


def expected(case: Case) -> list:
    weight, weights = torch.ones(2, dtype=torch.float64), []
    for gradients in case.inputs["gradients"].unbind(dim=1):
        if gradients.isfinite().all():
            weight = weight - RATE * gradients.mean(dim=0)
        weights.append(weight)
    return [{"weights": weights}] * case.ranks


def _careful(weight, gradients, rate, *, skip=lambda gradient: False, clean=lambda gradient: gradient):
    weights = []
    for gradient in gradients:
        if not skip(gradient):
            gradient = clean(gradient.clone())
            dist.all_reduce(gradient)
            weight = weight - rate * gradient / dist.get_world_size()
        weights.append(weight)
    return weights


def _agreed(flag, op):
    flag = torch.tensor(int(flag))
    dist.all_reduce(flag, op=op)
    return bool(flag)


def never_looks(weight, gradients, rate):
    """One nan in a gradient, and that weight is nan from then on, on all ranks. Look at the gradient before you use
    it.
    """
    return _careful(weight, gradients, rate)


def stops_training(weight, gradients, rate):
    """You leave the loop at the first bad gradient. The exercise asks for that one update to be skipped, and for its
    weights, unchanged, to be in the list.
    """
    good = 0
    while not _agreed(not gradients[good].isfinite().all(), dist.ReduceOp.MAX):
        good += 1
    return _careful(weight, gradients[:good], rate)


def zeros_instead(weight, gradients, rate):
    """The nan becomes 0 and is averaged in: an update with a made-up gradient. When one rank's gradient is bad, the
    update is skipped, by all.
    """
    return _careful(weight, gradients, rate, clean=lambda gradient: gradient.nan_to_num(0.0, 0.0, 0.0))


def only_if_all_are_bad(weight, gradients, rate):
    """You skip only where *all* ranks have a nan. One is enough to spoil the sum: the question is whether *any* rank
    has one.
    """
    return _careful(weight, gradients, rate, skip=lambda g: _agreed(not g.isfinite().all(), dist.ReduceOp.MIN))


def rank_0_decides(weight, gradients, rate):
    """All ranks do what rank 0 says, so that nothing hangs; but rank 0 has seen only its own gradient. All of them must
    be asked: an all-reduce instead of a broadcast.
    """

    def skip(gradient):
        flag = torch.tensor(int(not gradient.isfinite().all()))
        dist.broadcast(flag, src=0)
        return bool(flag)

    return _careful(weight, gradients, rate, skip=skip)


def looks_for_nan_only(weight, gradients, rate):
    """An infinite gradient is no nan, and makes the weights infinite. Ask for what is good: `isfinite`."""
    return _careful(weight, gradients, rate, skip=lambda gradient: _agreed(gradient.isnan().any(), dist.ReduceOp.MAX))


def decides_alone(weight, gradients, rate):
    """Each rank decides for itself: the one with the nan makes an all-reduce fewer than the others. Its next gradient
    is added to their previous one, and at the end they wait for ever. Decide together, before the branch.
    """
    return _careful(weight, gradients, rate, skip=lambda gradient: not gradient.isfinite().all())


EXERCISE = Exercise(
    number="08.3",
    title="One rank sees a nan",
    answer="careful_updates",
    level="exercise",
    minutes=15,
    parts={"a nan": 1, "a nan on one rank": 2, "an infinite number": 1},
    read="4 · A branch on one rank's numbers",
    hints=(
        "What does the branch depend on? Is that the same on all ranks?",
        "Take a number that is 1 where a rank's gradient is bad and 0 elsewhere. Its maximum over the ranks says if "
        "any is bad, and is the same for all.",
        "Or: what does the *sum* of the gradients look like if one rank's has a nan? All ranks see that sum.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        never_looks,
        stops_training,
        zeros_instead,
        only_if_all_are_bad,
        rank_0_decides,
        looks_for_nan_only,
    ),
    hanging=decides_alone,
)
