"""00.2 All-reduce by halves: the check, and the wrong answers it recognizes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Cost, Exercise, differs, seeded
from course_lib.checks.private import by_rank
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_00 import neighbors
from course_lib.lessons.symptoms import A_BARRIER, A_SHORTER_DTYPE, observed, only_barriers, over_budget, says


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, length: int, dtype: torch.dtype = torch.float32) -> Case:
        vectors = [torch.randn(length, generator=generator, dtype=dtype) for _ in range(ranks)]
        return Case(part, ranks, {"vectors": vectors}, f"vectors of {length} numbers, {dtype}")

    return [
        case("two ranks", 2, 2),
        case("two ranks", 2, 6),
        case("two ranks", 2, 8, torch.float64),
        case("more ranks", 4, 4),
        case("more ranks", 4, 32),
        case("more ranks", 8, 16),
        case("pieces of unequal length", 2, 7),
        case("pieces of unequal length", 4, 6),
        case("pieces of unequal length", 4, 41),
        case("pieces of unequal length", 8, 45),
    ]


def drive(answer, vectors: list[Tensor]):
    from course_lib.core.metering import meter

    with meter() as spent:
        total = answer(vectors[dist.get_rank()].clone())
    return {"the sum": total, "spent": spent.as_data()}


def judge(case: Case, values: list[Any]) -> str | None:
    right = _sum(case)
    for rank, value in enumerate(values):
        difference = differs(value["the sum"], right, "the sum", exact=right.dtype == torch.float64)
        if difference:
            return f"rank {rank}: {difference}"
    return None


def costs(case: Case, values: list[Any]) -> list[Cost]:
    rounds, piece = case.ranks.bit_length() - 1, -(-len(_sum(case)) // case.ranks) * _sum(case).element_size()
    spent = [value["spent"] for value in values]
    sent = max(sum(each["sent_to"].values()) for each in spent)
    return [
        Cost("collectives of a rank", max(sum(each["calls"].values()) for each in spent), 0),
        Cost("messages sent by a rank", max(each["messages"] for each in spent), 2 * rounds, at_least=1),
        Cost("bytes sent by a rank", sent, 2 * (case.ranks - 1) * piece, at_least=piece),
    ]


def _sum(case: Case) -> Tensor:
    return torch.stack(case.inputs["vectors"]).sum(0)


def _returned(values: list[Any]) -> list[Any]:
    return [value["the sum"] for value in values]


@observed
def nothing_returned(case: Case, values: list[Any]) -> bool:
    """Nothing is returned: every rank must return the sum, a whole vector."""
    return any(value is None for value in _returned(values))


@observed
@says(A_SHORTER_DTYPE)
def in_a_shorter_dtype(case: Case, values: list[Any]) -> bool:
    return judge(case, values) is not None and all(differs(value, _sum(case)) is None for value in _returned(values))


def unchanged(case: Case, values: list[Any]) -> bool:
    """Each rank returns its own input vector. Add what arrives to it, and return the result."""
    return differs(_returned(values), case.inputs["vectors"]) is None


def the_mean(case: Case, values: list[Any]) -> bool:
    """This is the mean, but the exercise asks for the sum."""
    return differs(_returned(values), [_sum(case) / case.ranks] * case.ranks) is None


def pairs_only(case: Case, values: list[Any]) -> bool:
    """These are sums of two ranks' vectors: each rank talked to only one other. After the first round, each pair has
    the sum of two; with partners at a different distance in every round, that becomes four, then eight, then all of
    them.
    """
    if case.ranks == 2:
        return False
    vectors, found = case.inputs["vectors"], _returned(values)
    return all(
        any(differs(value, vectors[rank] + vectors[other]) is None for other in range(case.ranks) if other != rank)
        for rank, value in enumerate(found)
    )


def stops_half_way(case: Case, values: list[Any]) -> bool:
    """Every number is summed on some rank, but no rank has all of them: that is where the first half ends, the
    reduce-scatter. Now the finished pieces have to go back: use the same partners in reverse order, and what arrives
    *replaces* what you have.
    """
    whole, right = torch.zeros(len(_sum(case)), dtype=torch.bool), _sum(case)
    for value in _returned(values):
        if value.shape != right.shape and value.numel() >= right.numel():
            return False
        if value.shape == right.shape:
            done = (value.double() - right).abs() <= 2e-5 * right.abs().max()
            if done.all():
                return False
            whole |= done
    returned = [value.double() for value in _returned(values)]
    return bool(whole.all()) or differs(torch.cat(returned), right) is None


def added_on_the_way_back(case: Case, values: list[Any]) -> bool:
    """Some numbers are too large: finished pieces were added to values that are already part of them. In the second
    half, nothing is added: what arrives replaces the old values.
    """
    right, found = _sum(case), torch.stack(_returned(values))
    over, near = found - right, 2e-5 * found.abs().max()
    own = torch.stack(case.inputs["vectors"])
    known = (over.abs() <= near) | ((over - own).abs() <= near) | ((over - right).abs() <= near)
    return bool(known.all()) and bool((over.abs() > near).any())


def out_of_place(case: Case, values: list[Any]) -> bool:
    """The numbers are right, but the pieces were put together wrongly. The lower half comes first, whether it is yours
    or your partner's.
    """
    right = _sum(case).sort().values
    return all(differs(value.sort().values, right) is None for value in _returned(values))


def the_rest_is_left_out(case: Case, values: list[Any]) -> bool:
    """The numbers beyond the last multiple of the number of ranks are still each rank's own; all others are right.
    Split an odd range into halves that differ by one, so that no number is left over.
    """
    right, own = _sum(case), case.inputs["vectors"]
    whole = len(right) // case.ranks * case.ranks
    mixed = [torch.cat([right[:whole], vector[whole:]]) for vector in own]
    return whole < len(right) and differs(_returned(values), mixed) is None


@observed
def only_some_ranks(case: Case, values: list[Any]) -> bool:
    """Some ranks have the sum and others don't. Every rank needs it."""
    right = [differs(value, _sum(case)) is None for value in _returned(values)]
    return 0 < sum(right) < case.ranks


@says(A_BARRIER)
def at_a_barrier(case: Case, values: list[Any]) -> bool:
    return judge(case, values) is None and only_barriers(value["spent"]["calls"] for value in values)


def a_collective(case: Case, values: list[Any]) -> bool:
    """The sum is right, but a collective of the library did the work. Build it from messages between two ranks:
    `dist.isend` and `dist.recv`.
    """
    return over_budget(judge, costs, case, values, 0)


def too_many_bytes(case: Case, values: list[Any]) -> bool:
    """The sum is right, but a rank sends more than it has to. It should send only the *half* that its partner continues
    with, and keep the other half: the next message is half as long. Whole vectors are too much.
    """
    return over_budget(judge, costs, case, values, 2)


def too_many_messages(case: Case, values: list[Any]) -> bool:
    """The sum is right, but it took more messages than needed: one piece at a time, as around a ring. Every message
    costs latency: send a whole half at once, to a partner at a different distance in each round.
    """
    return over_budget(judge, costs, case, values, 1)


def all_send_first(vector):
    """Every rank sends first."""
    left, right = neighbors()
    dist.send(vector, right)
    dist.recv(vector, left)


EXERCISE = Exercise(
    **texts("00.2"),
    cases=cases,
    drive=drive,
    private={"vectors": by_rank},
    judge=judge,
    costs=costs,
    symptoms=(
        in_a_shorter_dtype,
        at_a_barrier,
        a_collective,
        too_many_bytes,
        too_many_messages,
        nothing_returned,
        unchanged,
        the_mean,
        pairs_only,
        added_on_the_way_back,
        stops_half_way,
        the_rest_is_left_out,
        out_of_place,
        only_some_ranks,
    ),
    hanging=all_send_first,
)
