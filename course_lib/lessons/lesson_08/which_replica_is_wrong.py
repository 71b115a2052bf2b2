"""08.1 Which replica is wrong: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, seeded
from course_lib.checks.private import by_rank
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_08 import Diagnosed
from course_lib.lessons.processes import as_process
from course_lib.lessons.symptoms import observed

Weights = dict[str, Tensor]
SHAPES = {"lstm.weight": (4, 3), "lstm.bias": (4,), "head.weight": (2, 4), "head.bias": (2,)}


@dataclass(frozen=True, eq=False)
class Replicas(Diagnosed):
    """Replicas, at most one of them wrong; `fault` names how it differs."""

    fault: str = ""


def changed(weights: Tensor) -> Tensor:
    """Return the weights with one of them changed."""
    other = weights.clone()
    other.view(-1)[weights.numel() // 2] += 1
    return other


def reordered(weights: Tensor) -> Tensor:
    """Return the same numbers in another order, so that their sum, norm and maximum stay the same."""
    return weights.flatten().flip(0).view_as(weights)


def in_the_last_digit(weights: Tensor) -> Tensor:
    """Return the next larger floating-point number of each weight."""
    return torch.nextafter(weights, torch.full_like(weights, torch.inf))


def cases(seed: int) -> list[Case]:
    generator, dice = seeded(seed), random.Random(seed)

    def case(
        part: str,
        ranks: int,
        fault: Callable[[Tensor], Tensor] | None = None,
        *,
        names: int = 1,
        odd: int | None = None,
        nan: bool = False,
    ) -> Case:
        """Make a case in which the replica of rank `odd` has the fault in its last `names` tensors."""
        right: Weights = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
        if nan:
            right["lstm.bias"][1] = torch.nan
        replicas = [{name: tensor.clone() for name, tensor in right.items()} for _ in range(ranks)]
        if fault is None:
            alike = f"all have the same weights{', and one weight is nan' * nan}"
            return Replicas(part, ranks, {"replicas": replicas}, alike, None, "")
        odd = dice.randrange(ranks) if odd is None else odd
        wrong = [*SHAPES][-names:]
        for name in wrong:
            replicas[odd][name] = fault(replicas[odd][name])
        how = fault.__name__.replace("_", " ")
        says = f"{', '.join(wrong)} of rank {odd}: {how}{'; one weight is nan on every rank' * nan}"
        return Replicas(part, ranks, {"replicas": replicas}, says, [odd, wrong[0]], fault.__name__)

    plain, hard = PARTS
    return [
        case(plain, 3, changed, names=4, odd=1),
        case(plain, 4, changed, names=2, odd=2),
        case(plain, 3, changed, names=1),
        case(plain, 4, changed, names=3, odd=0),
        case(plain, 3),
        case(hard, 3, reordered, odd=2),
        case(hard, 4, reordered, names=dice.randint(2, 4)),
        case(hard, 3, in_the_last_digit, names=2, odd=0),
        case(hard, 4, in_the_last_digit, names=4),
        case(hard, 3, nan=True),
        case(hard, 4, changed, names=dice.randint(1, 2), nan=True),
    ]


def drive(answer, replicas: list[Weights]):
    rank = dist.get_rank()
    with as_process(rank, answer):  # ranks of a real job hash the same bytes to different numbers
        return answer({name: tensor.clone() for name, tensor in replicas[rank].items()})


def judge(case: Case, values: list) -> str | None:
    right = _truth(case)
    for rank, value in enumerate(values):
        if value is not None and not (isinstance(value, list) and len(value) == 2):
            return f"rank {rank}: it should return a rank and a name, or None, but returns {value!r}"
        if value != right:
            return f"rank {rank}: it says {_in_words(value)}, it should be {_in_words(right)}"
    return None


def _truth(case: Case) -> list | None:
    assert isinstance(case, Replicas)
    return case.truth


def _fault(case: Case) -> str:
    assert isinstance(case, Replicas)
    return case.fault


def _in_words(value: list | None) -> str:
    return "None" if value is None else repr(tuple(value))


def _ranks(values: list) -> list:
    """Return the ranks that are blamed, each once, even if an answer returned something other than ranks."""
    blamed = [value[0] if isinstance(value, list) and value else value for value in values]
    return [each for place, each in enumerate(blamed) if each not in blamed[:place]]


@observed
def not_all_know(case: Case, values: list) -> bool:
    """The ranks do not return the same result. Let every rank get all replicas, with a call that all ranks make: then
    all ranks compare the same weights and come to the same result.
    """
    return any(value != values[0] for value in values[1:])


@observed
def rank_0_is_not_the_judge(case: Case, values: list) -> bool:
    """Rank 0's replica is the wrong one here, and you blame a rank that differs from it. No rank is right because of
    its number: the wrong replica is the one that no other rank has.
    """
    truth = _truth(case)
    return truth is not None and truth[0] == 0 and None not in _ranks(values) and 0 not in _ranks(values)


@observed
def nan_is_not_equal_to_itself(case: Case, values: list) -> bool:
    """A weight is nan on every rank, so the replicas agree. But `nan == nan` is False: compare the bytes, or say that
    two nans count as equal.
    """
    with_nan = [name for name, weights in case.inputs["replicas"][0].items() if weights.isnan().any()]
    return any(isinstance(value, list) and value[-1:] in [[name] for name in with_nan] for value in values)


@observed
def sums_are_not_the_weights(case: Case, values: list) -> bool:
    """Nobody is named, but one replica has its numbers in a different order: their sum, norm and maximum are the same.
    Compare the weights themselves.
    """
    return _fault(case) == reordered.__name__ and _ranks(values) == [None]


@observed
def close_is_not_equal(case: Case, values: list) -> bool:
    """Nobody is named, but one replica differs in the last digit of its weights. Replicas get the same start and the
    same updates, so they are equal to the last bit, or something is wrong: compare without a tolerance.
    """
    return _fault(case) == in_the_last_digit.__name__ and _ranks(values) == [None]


def differs_by_process(case: Case, values: list) -> bool:
    """You blame rank 0 for its first tensor, whatever the ranks have. This is what you get if you compare the `hash` of
    bytes or of a string: every Python process salts it differently, so no two ranks agree. Compare the bytes
    themselves, or use `hashlib`.
    """
    truth, first = _truth(case), [0, next(iter(SHAPES))]
    return truth is not None and truth[0] != 0 and all(value == first for value in values)


@observed
def nobody_is_wrong(case: Case, values: list) -> bool:
    """All replicas are the same here, but you blame a rank. The answer is None in this case."""
    return _truth(case) is None


@observed
def first_name(case: Case, values: list) -> bool:
    """The rank is right; the name is wrong, or missing. Return the *first* tensor in which that replica differs, in the
    order of the dict.
    """
    truth = _truth(case)
    return truth is not None and _ranks(values) == [truth[0]]


@observed
def an_innocent_rank(case: Case, values: list) -> bool:
    """This rank has what most others have. Count how many ranks have each version: the wrong one appears only once."""
    truth = _truth(case)
    return truth is not None and not {None, truth[0]} & set(_ranks(values))


@observed
def nobody_is_named(case: Case, values: list) -> bool:
    """One replica is wrong, but nobody is named. Compare every tensor of every rank."""
    return True


def gathers_on_one_rank(weights):
    """A collective under an `if`: rank 0 waits for replicas that nobody sends."""
    if dist.get_rank() == 0:
        replicas = [None] * dist.get_world_size()
        dist.all_gather_object(replicas, weights)


PARTS = {"one replica differs": 1, "hard to see": 1}
EXERCISE = Exercise(
    **texts("08.1"),
    cases=cases,
    drive=drive,
    private={"replicas": by_rank},
    judge=judge,
    symptoms=(
        not_all_know,
        rank_0_is_not_the_judge,
        sums_are_not_the_weights,
        close_is_not_equal,
        nan_is_not_equal_to_itself,
        differs_by_process,
        nobody_is_wrong,
        first_name,
        an_innocent_rank,
        nobody_is_named,
    ),
    hanging=gathers_on_one_rank,
)
