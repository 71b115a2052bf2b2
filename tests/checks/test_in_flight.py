"""What is in flight arrives when it is waited for, and the check knows what nobody waited for."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.checks.inside.observe import observe_many
from course_lib.checks.inside.transport import CHANGED, NEVER, USED


def ask(answer):
    return answer(torch.full((2,), 1.0 + dist.get_rank(), dtype=torch.float64), 1 - dist.get_rank())


def drops_a_collective(mine, peer):
    dist.all_reduce(mine, async_op=True)


def drops_a_barrier(mine, peer):
    dist.barrier(async_op=True)


def keeps_a_send_to_the_end(mine, peer):
    works = [dist.isend(mine, peer)]
    dist.recv(torch.empty_like(mine), peer)
    return len(works)


def reads_whole_numbers_before_they_arrive(mine, peer):
    theirs = torch.tensor([-1])
    work = dist.irecv(theirs, peer)
    dist.send(torch.tensor([7]), peer)
    early = theirs.item()
    work.wait()
    return [early, theirs.item()]


def changes_a_message(mine, peer):
    work = dist.isend(mine, peer)
    dist.recv(theirs := torch.empty_like(mine), peer)
    mine += theirs
    work.wait()
    return theirs


def changes_an_input(mine, peer):
    parts = [torch.empty_like(mine) for _ in range(2)]
    work = dist.all_gather(parts, mine, async_op=True)
    mine.zero_()
    work.wait()
    return parts


def scales_a_single_number_too_early(mine, peer):
    total = mine.sum()
    work = dist.all_reduce(total, async_op=True)
    total /= 2
    work.wait()


def uses_what_has_not_arrived(mine, peer):
    work = dist.all_reduce(mine, async_op=True)
    mean = (mine.float().tanh() + 1).mean().item() / 2
    other = [float(each) + 1 for each in mine]
    work.wait()
    return [mean, other]


def waits(mine, peer):
    works = [dist.all_reduce(mine, async_op=True), dist.barrier(async_op=True), dist.isend(torch.ones(3), peer)]
    dist.recv(torch.empty(3), peer)
    for work in works:
        work.wait()
    return mine


def asks_until_it_is_done(mine, peer):
    work = dist.all_reduce(mine, async_op=True)
    while not work.is_completed():
        pass
    return mine


def by_future(mine, peer):
    buffer = torch.zeros(4, dtype=torch.float64)
    buffer[:2] = mine
    work = dist.all_reduce(buffer[:2], async_op=True)
    buffer[2:] = 9  # a neighbor of what is in flight
    torch.futures.wait_all([work.get_future().then(lambda future: future.value()[0])])
    return buffer[:2]


def gathers_in_place(mine, peer):
    parts = [torch.zeros_like(mine) for _ in range(2)]
    parts[dist.get_rank()] = mine
    dist.all_gather(parts, mine, async_op=True).wait()
    return sum(parts)


def the_root_may_read(mine, peer):
    work = dist.broadcast(mine, src=0, async_op=True)
    doubled = mine * 2 if dist.get_rank() == 0 else None
    work.wait()
    return mine * 2 + 1 if doubled is None else doubled + 1


WRONG = {
    drops_a_collective: (NEVER, "all_reduce"),
    drops_a_barrier: (NEVER, "barrier"),
    keeps_a_send_to_the_end: (NEVER, "isend"),
    changes_a_message: (CHANGED, "isend"),
    changes_an_input: (CHANGED, "all_gather"),
    scales_a_single_number_too_early: (CHANGED, "all_reduce"),
    uses_what_has_not_arrived: (USED, ""),
}
RIGHT = [waits, asks_until_it_is_done, by_future, gathers_in_place, the_root_may_read]


@pytest.fixture(scope="module")
def outcomes():
    answers = [*WRONG, *RIGHT, reads_whole_numbers_before_they_arrive]
    seen = observe_many(ask, [(answer, {}) for answer in answers], 2, 60.0)
    assert len(seen) == len(answers)
    return dict(zip(answers, seen, strict=True))


@pytest.mark.parametrize("answer", WRONG, ids=lambda each: each.__name__)
def test_a_fault_in_flight_is_noticed_every_time(outcomes, answer):
    assert set(outcomes[answer].in_flight) == {WRONG[answer]}


@pytest.mark.parametrize("answer", RIGHT, ids=lambda each: each.__name__)
def test_whoever_waits_finds_what_has_arrived(outcomes, answer):
    assert outcomes[answer].in_flight == ()
    for value in outcomes[answer].decoded():
        assert value.tolist() == [3.0, 3.0]


def test_nothing_arrives_before_somebody_waits_for_it(outcomes):
    assert outcomes[reads_whole_numbers_before_they_arrive].decoded() == [[-1, 7]] * 2
