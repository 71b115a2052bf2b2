"""00.1 Pass it on: the check, and the wrong answers it recognizes."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist

from course_lib.checks.exercise import Case, Cost, Exercise, differs, draw
from course_lib.checks.private import by_rank
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_00 import neighbors
from course_lib.lessons.symptoms import A_BARRIER, observed, only_barriers, over_budget, says


def cases(seed: int) -> list[Case]:
    def case(part: str, numbers: list[int]) -> Case:
        return Case(part, len(numbers), {"numbers": numbers}, f"with the numbers {numbers}")

    def some(ranks: int):
        def make(chance: random.Random) -> list[int]:
            return chance.sample(range(10, 100), ranks)

        return make

    return [
        *(case("two ranks", numbers) for numbers in draw(some(2), 2, seed)),
        case("two ranks", [0, 7]),
        *(case("a ring", numbers) for ranks in (3, 4) for numbers in draw(some(ranks), 2, seed)),
        case("a ring", [8, 0, 8, 5]),
    ]


def drive(answer, numbers: list[int]):
    from course_lib.core.metering import meter

    with meter() as spent:
        value = answer(numbers[dist.get_rank()])
    return {"value": value, "spent": spent.as_data()}


def judge(case: Case, values: list[Any]) -> str | None:
    for rank, (value, right) in enumerate(zip(values, _shifted(case, -1), strict=True)):
        difference = differs(value["value"], right)
        if difference:
            return f"rank {rank} returns {difference.removeprefix('is ')}"
    return None


def costs(case: Case, values: list[Any]) -> list[Cost]:
    """Count collectives, and bytes sent to any rank but the next."""
    elsewhere = [
        sum(size for peer, size in value["spent"]["sent_to"].items() if peer != (rank + 1) % case.ranks)
        for rank, value in enumerate(values)
    ]
    return [
        Cost("collectives of a rank", max(sum(value["spent"]["calls"].values()) for value in values), 0),
        Cost("bytes sent to ranks other than the next", max(elsewhere), 0),
    ]


def _shifted(case: Case, by: int) -> list[int]:
    """Return, for each rank, the number of the rank `by` places after it."""
    numbers = case.inputs["numbers"]
    return [numbers[(rank + by) % case.ranks] for rank in range(case.ranks)]


def _has_sent(values: list[Any], rank: int, to: int) -> bool:
    return bool(values[rank]["spent"]["sent_to"].get(to))


def _returned(values: list[Any]) -> list[Any]:
    return [value["value"] for value in values]


@observed
def nothing_returned(case: Case, values: list[Any]) -> bool:
    """A rank returns nothing: `dist.recv` fills the tensor you pass to it. Return that tensor, on every rank."""
    return any(value is None for value in _returned(values))


def all_the_way_round(case: Case, values: list[Any]) -> bool:
    """Every rank returns its own number, after sending at least as many messages as there are ranks: a number that is
    passed on that many times comes all the way around the ring. One step is enough: send your number once, and return
    what arrives.
    """
    sent = min(value["spent"]["messages"] for value in values)
    return sent >= case.ranks and differs(_returned(values), _shifted(case, 0)) is None


def its_own(case: Case, values: list[Any]) -> bool:
    """This is the rank's own number: receive into a second tensor, and return that one."""
    return differs(_returned(values), _shifted(case, 0)) is None


def the_other_way_round(case: Case, values: list[Any]) -> bool | None:
    """The numbers go around the other way: you have the next rank's. With two ranks, you can't tell the difference.
    Send to the next rank, receive from the previous one.
    """
    if case.ranks <= 3:  # with 3 ranks, the next one is also two places back
        return None
    return differs(_returned(values), _shifted(case, 1)) is None


@observed
def only_from_rank_0(case: Case, values: list[Any]) -> bool:
    """Rank 0 returns its own number, and rank 1 returns it, too: nothing came to rank 0. That is a chain, or a
    broadcast. In a ring, every rank sends, and every rank receives: rank 0 comes after the last rank.
    """
    both = case.ranks == 2 and differs(_returned(values), [case.inputs["numbers"][0]] * 2) is None
    return both and not _has_sent(values, 1, 0)


def passes_on_what_it_received(case: Case, values: list[Any]) -> bool:
    """Some ranks get the number from two ranks before them: the rank before them sent what it had received instead of
    its own number. `dist.recv` overwrites the tensor that you pass to it: don't receive into the tensor you send.
    """
    found, right, before = _returned(values), _shifted(case, -1), _shifted(case, -2)
    wrong = [rank for rank in range(case.ranks) if differs(found[rank], right[rank])]
    sent = all(_has_sent(values, (rank - 1) % case.ranks, rank) for rank in wrong)
    return 0 < len(wrong) < case.ranks and sent and all(differs(found[rank], before[rank]) is None for rank in wrong)


def all_have_the_same(case: Case, values: list[Any]) -> bool:
    """All ranks have the same number: that is a broadcast. Every rank should send its own number, and receive the
    previous rank's.
    """
    return any(differs(_returned(values), [number] * case.ranks) is None for number in case.inputs["numbers"])


def added_up(case: Case, values: list[Any]) -> bool:
    """What arrives is not one number but a sum: several of them were added on the way. Send your number alone, before
    you receive anything.
    """
    numbers, found = case.inputs["numbers"], _returned(values)
    sums = {
        sum(numbers[(rank - k) % case.ranks] for k in range(1, n)) for rank in range(case.ranks) for n in range(3, 6)
    }
    return any(differs(value, total) is None for value in found for total in sums - set(numbers))


def an_open_chain(case: Case, values: list[Any]) -> bool:
    """All ranks but rank 0 have the right number: that is a chain, in which the last rank doesn't send and rank 0
    doesn't receive. In a ring, rank 0 comes after the last rank.
    """
    found, right = _returned(values), _shifted(case, -1)
    return differs(found[1:], right[1:]) is None and differs(found[0], right[0]) is not None


@says(A_BARRIER)
def at_a_barrier(case: Case, values: list[Any]) -> bool:
    return judge(case, values) is None and only_barriers(value["spent"]["calls"] for value in values)


def a_collective(case: Case, values: list[Any]) -> bool:
    """The numbers are right, but every rank received all of them: that is a collective. One message from each rank to
    the next is enough: `dist.isend` and `dist.recv`.
    """
    return over_budget(judge, costs, case, values, 0)


def sent_to_others(case: Case, values: list[Any]) -> bool:
    """The numbers are right, but some were sent to a rank that doesn't need them. A rank sends to the next one only."""
    return over_budget(judge, costs, case, values, 1)


def all_wait(number):
    """Every rank receives first."""
    left, right = neighbors()
    theirs = torch.empty(1)
    dist.recv(theirs, left)
    dist.send(torch.tensor([float(number)]), right)
    return theirs


EXERCISE = Exercise(
    **texts("00.1"),
    cases=cases,
    drive=drive,
    private={"numbers": by_rank},
    judge=judge,
    costs=costs,
    symptoms=(
        at_a_barrier,
        a_collective,
        sent_to_others,
        nothing_returned,
        all_the_way_round,
        its_own,
        only_from_rank_0,
        passes_on_what_it_received,
        the_other_way_round,
        all_have_the_same,
        added_up,
        an_open_chain,
    ),
    hanging=all_wait,
)
