"""What `meter` counts: collectives, messages, forwards, backwards, what autograd holds."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

from course_lib import launch
from course_lib.core.metering import meter


def talks():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(100))  # before: not counted
    with meter() as spent:
        dist.all_reduce(torch.ones(10))
        dist.all_reduce(torch.ones(5, dtype=torch.float64))
        dist.all_gather([torch.empty(3) for _ in range(ranks)], torch.ones(3))
        sending = dist.isend(torch.ones(7, dtype=torch.float64), (rank + 1) % ranks)
        dist.recv(torch.empty(7, dtype=torch.float64), (rank - 1) % ranks)
        sending.wait()
    dist.barrier()  # after it
    return spent.as_data()


def test_collectives_and_messages_are_counted_with_their_bytes():
    for rank, spent in enumerate(launch(talks, ranks=3)):
        assert spent["calls"] == {"all_reduce": 2, "all_gather": 1}
        assert spent["payload"] == {"all_reduce": 80, "all_gather": 12}
        assert spent["sent_to"] == {(rank + 1) % 3: 56}
        assert spent["received_from"] == {(rank - 1) % 3: 56}
        assert spent["messages"] == 1
        assert spent["waits"] == 5


def does_not_wait():
    with meter() as spent:
        begun = dist.all_reduce(torch.ones(10), async_op=True)
        dist.all_reduce(torch.ones(10))
    begun.wait()
    return spent.as_data()


def test_what_is_not_waited_for_is_missing_among_the_waits():
    for spent in launch(does_not_wait, ranks=2):
        assert (spent["calls"], spent["waits"]) == ({"all_reduce": 2}, 1)


def in_ddp():
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    with meter() as spent:
        model(torch.ones(3, 4)).sum().backward()
    return spent.as_data()


def test_what_ddp_sends_from_c_plus_plus_is_counted_too():
    for spent in launch(in_ddp, ranks=2):
        assert spent["calls"]["all_reduce"] == 1
        assert spent["payload"]["all_reduce"] == 4 * (4 * 2 + 2)


def test_forwards_and_backwards_are_counted_with_the_shapes_they_saw():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    with meter() as spent:
        model(torch.ones(3, 4)).sum().backward()
        torch.autograd.grad(model(torch.ones(5, 4)).sum(), list(model.parameters()))
    model(torch.ones(9, 4))
    assert spent.forwards["Linear"] == [[3, 4], [5, 4]]
    assert spent.backwards == 2
    assert spent.calls == {}


def saved_by(pieces: int) -> int:
    """What autograd holds at most, if 64 rows go through in so many pieces, each forward and back at once."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    with meter() as spent:
        for piece in torch.ones(64, 4).chunk(pieces):
            model(piece).sum().backward()
    return spent.saved_bytes


def test_what_autograd_holds_is_let_go_after_backward():
    assert 0 < saved_by(4) < saved_by(2) < saved_by(1)
    assert saved_by(1) >= 64 * (4 + 8 + 8) * 4, "the inputs of both layers, and what tanh keeps"


def test_a_tensor_that_is_saved_twice_is_held_once():
    x = torch.ones(1000, requires_grad=True) * 2
    with meter() as spent:
        y = x.sin() + x.cos()
    assert spent.saved_bytes == 4000
    assert y.shape == (1000,)


def test_who_looks_at_the_stack_makes_no_tensor_count_for_longer():
    model, looked_at = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), []
    with meter() as spent:
        for _ in range(3):
            sys.setprofile(lambda frame, *_: looked_at.append(frame))  # a frame keeps its variables
            try:
                model(torch.ones(3, 4)).sum().backward()
            finally:
                sys.setprofile(None)
    with meter() as alone:
        model(torch.ones(3, 4)).sum().backward()
    assert looked_at
    assert spent.saved_bytes == alone.saved_bytes > 0
