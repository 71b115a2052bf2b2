"""08.6 It runs, and is wrong: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_08 import Diagnosed
from course_lib.lessons.symptoms import observed

CAUSES = ("start", "repeats", "own gradient", "other rate", "not applied", "sum", "group", "none")
OF_ONE_RANK = ("start", "repeats", "own gradient", "other rate", "not applied")
BATCH = 2  # examples per rank and update; with four ranks or more, some ranks have more
RATES, SMALL_RATE = (0.05, 0.1, 0.2), 0.001  # the small one changes weights little, but far more than rounding does


@dataclass(frozen=True)
class Fault:
    """A fault that begins at `update`; `rank` is None if all ranks do the same wrong thing."""

    cause: str
    rank: int | None
    update: int | None
    lasts: bool = True  # False: it happens only once

    def hits(self, cause: str, rank: int, update: int) -> bool:
        if self.cause != cause or self.update is None or self.rank not in (None, rank):
            return False
        return update >= self.update if self.lasts else update == self.update


def cases(seed: int) -> list[Case]:
    dice, generator = random.Random(seed), seeded(seed)

    def fault(cause: str, ranks: int, at: int, lasts: bool | None = None) -> Fault:
        rank = dice.randrange(ranks) if cause in OF_ONE_RANK else None
        rank = 0 if cause == "start" and ranks == 3 else rank  # comparing with rank 0 then blames the wrong rank
        lasts = cause != "repeats" and dice.random() < 0.6 if lasts is None else lasts
        return Fault(cause, rank, None if cause == "none" else at, lasts)

    def job(part: str, cause: str, ranks: int, updates: int, rate: float | None = None) -> Diagnosed:
        at = 0 if cause == "start" else dice.randrange(1 if cause == "repeats" else 0, updates)
        return _job(part, [fault(cause, ranks, at)], ranks, updates, rate)

    def two(part: str, causes: tuple[str, str], ranks: int, at: tuple[int, int]) -> Diagnosed:
        """Make a job with two faults, each of them in a single update; the first is the one to find."""
        faults = [fault(cause, ranks, update, lasts=False) for cause, update in zip(causes, at, strict=True)]
        if at[0] == at[1] and faults[0].rank is not None:  # going rank by rank then finds the wrong one first
            faults = [replace(faults[0], rank=ranks - 1), replace(faults[1], rank=dice.randrange(ranks - 1))]
        return _job(part, faults, ranks, 4)

    def _job(part: str, faults: list[Fault], ranks: int, updates: int, rate: float | None = None) -> Diagnosed:
        record = train(faults, ranks, updates, rate or dice.choice(RATES), dice, generator)
        first, *others = ((each.rank, each.update, each.cause) for each in faults)
        return Diagnosed(part, 1, {"record": record}, _in_words(record), (first, others))

    return [
        *(job("one rank", cause, 3 + extra, 2 + 2 * extra) for extra in range(2) for cause in OF_ONE_RANK),
        *(job("one rank", cause, 5, 6, SMALL_RATE) for cause in OF_ONE_RANK),
        two("one rank", ("not applied", "repeats"), 3, (1, 3)),
        two("one rank", ("other rate", "own gradient"), 4, (0, 2)),
        two("one rank", ("repeats", "other rate"), 3, (2, 2)),
        two("one rank", ("own gradient", "not applied"), 4, (1, 1)),
        two("one rank", ("not applied", "other rate"), 3, (1, 1)),
        *(job("all ranks", cause, ranks, updates) for ranks, updates in ((4, 2), (5, 5)) for cause in ("sum", "group")),
        two("all ranks", ("sum", "repeats"), 4, (1, 2)),
        two("all ranks", ("group", "other rate"), 5, (1, 1)),
        *(job("all ranks", "none", ranks, updates) for ranks, updates in ((3, 2), (4, 6))),
    ]


def _in_words(record: dict) -> str:
    """Return the record of a small job in words; for a large job, only its size."""

    def brief(numbers: list[float]) -> list[float]:
        return [round(number, 3) for number in numbers]

    ranks, updates = len(record["start"]), len(record["updates"])
    lines = [f"{ranks} ranks, {updates} updates; rate {record['rate']}, start {list(map(brief, record['start']))}"]
    if ranks * updates > 8:
        return lines[0]
    for update, rows in enumerate(record["updates"]):
        for rank, row in enumerate(rows):
            steps = ", ".join(f"{name} {brief(row[name])}" for name in ("gradient", "used", "weights"))
            lines.append(f"update {update}, rank {rank}: examples {row['examples']}, {steps}")
    return "\n  ".join(lines)


def train(
    faults: list[Fault], ranks: int, updates: int, rate: float, dice: random.Random, generator: torch.Generator
) -> dict:
    """Train a linear model on `ranks` simulated ranks, each with its own weights, and return a record of the run."""
    sizes = [BATCH + (rank % 3 if ranks > 3 else 0) for rank in range(ranks)]
    size = updates * sum(sizes)
    inputs = torch.randn(size, 2, generator=generator, dtype=torch.float64)
    targets = inputs @ torch.tensor([1.0, -2.0], dtype=torch.float64) + 3.0
    of_updates = torch.randperm(size, generator=generator).chunk(updates)
    order = [[mine.tolist() for mine in each.split(sizes)] for each in of_updates]
    weights = [torch.randn(2, generator=generator, dtype=torch.float64)] * ranks
    for fault in faults:
        if fault.cause == "start" and fault.rank is not None:
            weights[fault.rank] = torch.randn(2, generator=generator, dtype=torch.float64)
    another_rate = 2.0 if rate == SMALL_RATE else dice.choice((0.5, 1.1, 2.0))
    start = [each.tolist() for each in weights]
    log = []
    for update in range(updates):
        examples = [
            _repeated(dice, order, update, rank) if _hit(faults, "repeats", rank, update) else order[update][rank]
            for rank in range(ranks)
        ]
        off = [inputs[mine] @ weights[rank] - targets[mine] for rank, mine in enumerate(examples)]
        own = [2 * each @ inputs[mine] / len(mine) for each, mine in zip(off, examples, strict=True)]
        last_digits = [1 + 1e-13 * dice.choice((-1, 1)) for _ in range(ranks)]  # the order of summation changes them
        used = [_used(faults, rank, update, own) * last_digits[rank] for rank in range(ranks)]
        rates = [rate * _times(faults, rank, update, another_rate) for rank in range(ranks)]
        weights = [(weights[rank] - rates[rank] * used[rank]) * last_digits[-1 - rank] for rank in range(ranks)]
        log.append(
            [
                {
                    "examples": examples[rank],
                    "loss": off[rank].square().mean().item(),
                    "gradient": own[rank].tolist(),
                    "used": used[rank].tolist(),
                    "weights": weights[rank].tolist(),
                }
                for rank in range(ranks)
            ]
        )
    return {"rate": rate, "start": start, "updates": log}


def _hit(faults: list[Fault], cause: str, rank: int, update: int) -> bool:
    return any(fault.hits(cause, rank, update) for fault in faults)


def _repeated(dice: random.Random, order: list, update: int, rank: int) -> list[int]:
    """Return a batch in which one example, or all of them, come from an earlier update: from this rank's batch if there
    are four ranks, otherwise from another rank's.
    """
    ranks = len(order[0])
    whose = rank if ranks == 4 else (rank + dice.randrange(1, ranks)) % ranks
    earlier = order[dice.randrange(update)][whose]
    return [*earlier] if dice.random() < 0.5 else [order[update][rank][0], *earlier[1:]]


def _times(faults: list[Fault], rank: int, update: int, another_rate: float) -> float:
    """Return the factor on a rank's rate."""
    if _hit(faults, "not applied", rank, update):
        return 0.0
    return another_rate if _hit(faults, "other rate", rank, update) else 1.0


def _used(faults: list[Fault], rank: int, update: int, own: Sequence[Tensor]) -> Tensor:
    """Return the gradient that a rank's optimizer uses."""
    everybody = torch.stack(list(own))
    if _hit(faults, "own gradient", rank, update):
        return own[rank]
    if _hit(faults, "sum", rank, update):
        return everybody.sum(dim=0)
    if _hit(faults, "group", rank, update):
        half = len(own) // 2
        first = rank < half or len(own) % 2  # if their number is odd, all use the mean over the first half
        return (everybody[:half] if first else everybody[half:]).mean(dim=0)
    return everybody.mean(dim=0)


def drive(answer, record: dict):
    import copy

    return {"found": answer(copy.deepcopy(record))}


def judge(case: Case, values: list) -> str | None:
    found, right = values[0]["found"], list(_truth(case))
    if not isinstance(found, list) or len(found) != 3:
        return f"it should return a rank, an update and a cause, but returns {found!r}"
    return None if found == right else f"it says {tuple(found)}, it should be {tuple(right)}"


def _truth(case: Case) -> tuple:
    assert isinstance(case, Diagnosed)
    return case.truth[0]


@observed
def a_later_fault(case: Case, values: list) -> bool:
    """This is a fault, too, but not the first one. Earlier updates come first; within an update, the fault that comes
    first in the table.
    """
    assert isinstance(case, Diagnosed)
    return tuple(values[0]["found"]) in case.truth[1]


@observed
def sees_ghosts(case: Case, values: list) -> bool:
    """Nothing is wrong with this job. Ranks have different examples, so their losses and gradients differ; each rank's
    gradient weighs the same in the mean, however many examples it has; and sums of the same numbers in a different
    order differ in their last digits.
    """
    return _truth(case)[2] == "none"


@observed
def sees_nothing(case: Case, values: list) -> bool:
    """Something is wrong with this job, but it was not found. Check every step of every update: the initial weights,
    the examples, what happens to the gradients, and what happens to the weights.
    """
    return values[0]["found"][2] == "none"


@observed
def the_same_later(case: Case, values: list) -> bool:
    """Rank and cause are right, but the fault occurs in an earlier update already: return the first one."""
    found, right = values[0]["found"], _truth(case)
    return isinstance(found[1], int) and found[1] > right[1] and (found[0], found[2]) == (right[0], right[2])


@observed
def a_consequence(case: Case, values: list) -> bool:
    """This is a consequence: something was wrong in an earlier update, and since then weights differ, and so do losses
    and gradients. Find the first thing that does not follow from what came before it.
    """
    update, first = values[0]["found"][1], _truth(case)[1]
    return isinstance(update, int) and isinstance(first, int) and update > first


@observed
def too_early(case: Case, values: list) -> bool:
    """In this update all is still well. Different losses and gradients are not a fault: ranks have different examples.
    Each rank's gradient weighs the same in the mean, however many examples it has. Last digits that differ are not a
    fault either: they depend on the order of summation.
    """
    update, first = values[0]["found"][1], _truth(case)[1]
    return isinstance(update, int) and isinstance(first, int) and update < first


@observed
def one_for_all(case: Case, values: list) -> bool:
    """All ranks do the same wrong thing in this update: no rank is more to blame than others, and the rank is None."""
    found, right = values[0]["found"], _truth(case)
    return right[0] is None and found[0] is not None and found[1] == right[1]


@observed
def another_rank(case: Case, values: list) -> bool:
    """The update is right, but the rank is not. At the start: which rank's weights differ from all others? Later: which
    rank's numbers do not follow from the previous ones?
    """
    found, right = values[0]["found"], _truth(case)
    return found[0] != right[0] and found[1] == right[1]


@observed
def another_cause(case: Case, values: list) -> bool:
    """Rank and update are right, but the cause is not. Check the steps one by one: initial weights, examples, `used`
    from the gradients, weights from `used`.
    """
    return values[0]["found"][:2] == list(_truth(case)[:2])


EXERCISE = Exercise(
    **texts("08.6"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        sees_ghosts,
        sees_nothing,
        a_later_fault,
        the_same_later,
        a_consequence,
        too_early,
        one_for_all,
        another_rank,
        another_cause,
    ),
)
