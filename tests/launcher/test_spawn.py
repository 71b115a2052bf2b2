"""Where there is no fork (macOS, Windows), ranks are spawned; they fail as forked ones do. Tried here, on Linux."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import torch.distributed as dist

from course_lib import CannotSend, CollectivesDiffer, LaunchError, RankDied, RankFailed, RanksStuck, launch
from course_lib.checks.inside.observe import observe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # each imports torch three times or more


@pytest.fixture(autouse=True)
def spawned(monkeypatch):
    monkeypatch.setenv("COURSE_LIB_START_METHOD", "spawn")


def _raise():
    if dist.get_rank() == 1:
        raise KeyError("no such batch")
    dist.barrier()


def _exit():
    if dist.get_rank() == 1:
        os._exit(5)
    dist.barrier()


def _kill():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _skip():
    if dist.get_rank() == 0:
        dist.barrier()


def _differ():
    dist.all_reduce(torch.ones(2 + dist.get_rank() // 2))


def _unpicklable():
    return (i for i in [])


def _sleep():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


@pytest.mark.parametrize(
    ("work", "error", "says"),
    [
        (_raise, RankFailed, "rank 1 raised KeyError: 'no such batch'"),
        (_exit, RankDied, "rank 1 ended with exit code 5"),
        (_kill, RankDied, "rank 1 was killed by SIGKILL"),
        (_skip, RanksStuck, "rank 0 waits in barrier for rank 1, which has returned"),
        (_differ, CollectivesDiffer, "rank 2 is the odd one out"),
        (_unpicklable, CannotSend, "cannot be sent back"),
        (_sleep, RanksStuck, "rank 1  is stopped"),
    ],
)
def test_a_spawned_rank_fails_as_a_forked_one_does(work, error, says):
    with pytest.raises(LaunchError) as caught:
        launch(work, ranks=3 if work is _differ else 2, timeout=8 if work is _sleep else None)
    assert isinstance(caught.value, error)
    assert says in str(caught.value)


def _wrap_and_train(answer):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    torch.optim.Adam(model.parameters())  # imports for seconds, in a process that was not forked from one that has
    return answer(model(torch.ones(1, 2)).sum().detach())


def test_a_check_has_patience_with_spawned_ranks():
    assert observe(_wrap_and_train, lambda loss: loss * 0, 2, {}, timeout=2.5).kind == "returned"
