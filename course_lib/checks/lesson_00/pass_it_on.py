"""00.1 Pass it on: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.checks.lesson_00 import exchange, neighbours


def cases(seed: int) -> list[Case]:
    def case(part: str, ranks: int) -> Case:
        numbers = (10 + torch.randperm(90, generator=seeded(seed))[:ranks]).tolist()
        return Case(part, ranks, {"numbers": numbers}, f"with the numbers {numbers}")

    return [case("two ranks", 2), case("a ring", 3), case("a ring", 4)]


def drive(answer, numbers: list[int]):
    return float(answer(numbers[dist.get_rank()]))


def expected(case: Case) -> list[float]:
    numbers = case.inputs["numbers"]
    return [float(numbers[rank - 1]) for rank in range(case.ranks)]


def returns_its_own(number):
    """This is your own number: what arrives must be received into a tensor of its own, and that one returned."""
    left, right = neighbours()
    mine, theirs = torch.tensor([float(number)]), torch.empty(1)
    exchange(mine, right, theirs, left)
    return mine


def leaves_the_ring_open(number):
    """The last rank sends to nobody and rank 0 receives from nobody: that is a chain. In a ring, rank 0 comes after the
    last one.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    theirs = torch.zeros(1)
    sending = dist.isend(torch.tensor([float(number)]), rank + 1) if rank + 1 < ranks else None
    if rank > 0:
        dist.recv(theirs, rank - 1)
    if sending:
        sending.wait()
    return theirs


def all_get_rank_0s(number):
    """All ranks have rank 0's number: a broadcast. Every rank has something to send, and something else to receive."""
    theirs = torch.tensor([float(number)])
    dist.broadcast(theirs, src=0)
    return theirs


def adds_on_the_way(number):
    """What arrives has more in it than one number: each rank waited, added its own and passed the sum on. Send your
    number alone, before you have received anything.
    """
    left, right = neighbours()
    token, mine = torch.zeros(1), torch.tensor([float(number)])
    if dist.get_rank() == 0:
        dist.send(mine, right)
        dist.recv(token, left)
    else:
        dist.recv(token, left)
        dist.send(token + mine, right)
    return token


def wrong_way_round(number):
    """The numbers go round the other way: you have the next rank's. With two ranks nobody can tell. Send to the next
    rank, receive from the one before.
    """
    left, right = neighbours()
    theirs = torch.empty(1)
    exchange(torch.tensor([float(number)]), left, theirs, right)
    return theirs


def all_wait(number):
    """A deadlock: every rank waits for its neighbour, be it that all receive first or that all send first, or that the
    last one sends to a rank which does not exist. The sending must not wait (`dist.isend`), and neighbours in a ring
    are counted modulo the number of ranks.
    """
    left, right = neighbours()
    theirs = torch.empty(1)
    dist.recv(theirs, left)
    dist.send(torch.tensor([float(number)]), right)
    return theirs


EXERCISE = Exercise(
    number="00.1",
    title="Pass it on",
    answer="pass_on",
    level="warm-up",
    minutes=10,
    parts={"two ranks": 1, "a ring": 1},
    read="3 · A message",
    hints=(
        "Who is the next rank of the last one? `(rank + 1) % ranks`.",
        "`dist.send` may wait until somebody receives. What if all ranks call it first, or all call `dist.recv` first?",
        "`sending = dist.isend(tensor, to)` returns at once; `sending.wait()`, at the end, makes sure that it is done.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        returns_its_own,
        leaves_the_ring_open,
        all_get_rank_0s,
        adds_on_the_way,
        wrong_way_round,
    ),
    hanging=all_wait,
)
