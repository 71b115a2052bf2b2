"""Live ranks over NCCL: cells keep their variables, a fault is named as by `launch`, and the team runs another cell."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

from course_lib import CollectivesDiffer, RankDied, RankFailed, RanksStuck, ranks
from course_lib.runtime import machine

RANKS = 4
SUM = "total = torch.ones(1000, device=device); dist.all_reduce(total); int(total[0])"


@pytest.fixture(scope="module")
def the_team():
    if trouble := machine.why_not_nccl(RANKS):
        pytest.skip(trouble)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(machine.BACKEND, "nccl")
        with ranks(RANKS) as team:
            yield team


@pytest.fixture
def team(the_team):
    """The team, with `x` on every rank's GPU. After the test, all ranks must communicate."""
    the_team.run("import os, signal, time; x = torch.full((1000,), 1.0 + rank, device=device); dist.all_reduce(x)")
    yield the_team
    assert list(the_team.run(SUM)) == [RANKS] * RANKS


def test_cells_are_over_nccl_and_keep_their_variables(team):
    assert set(team.run("dist.get_backend() + ' ' + device.type")) in ({"cpu:gloo,cuda:nccl cuda"}, {"nccl cuda"})
    team.run("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1000, 2).to(device))")
    team.run("(model(x) * rank).sum().backward(); gradient = next(model.parameters()).grad")
    assert len(set(team.run("gradient.sum().item()"))) == 1
    assert torch.equal(team.pull("gradient")[3], team[0]["gradient"])


FAULTS = {
    "one raises": ("if rank == 3: raise ValueError('no data')\ndist.all_reduce(y)", RankFailed, "rank 3 raised Value"),
    "one skips": (
        "if rank != 2: dist.all_reduce(y)",
        RanksStuck,
        "wait in all_reduce for rank 2, which has returned",  # a rank may still be on its way
    ),
    "all receive": (
        "for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, y, rank ^ 1)]): work.wait()",
        RanksStuck,
        "every rank waits in recv, and no rank sends",
    ),
    "another collective": (
        "dist.broadcast(y, 0) if rank == 2 else dist.all_reduce(y)",
        CollectivesDiffer,
        "rank 2 is the odd one out",
    ),
    "another shape": (
        "dist.all_reduce(torch.ones(2000, device=device) if rank == 2 else y)",
        CollectivesDiffer,
        "rank 2  all_reduce of float32 [2000]",
    ),
    "no room": (
        "if rank == 2: torch.empty(1 << 45, device=device)\ndist.all_reduce(y)",
        RankFailed,
        "OutOfMemoryError",
    ),
    "a killed rank": (
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(y)",
        RankDied,
        "rank 1 was killed by SIGKILL",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_as_by_launch_and_the_team_lives_on(team, name):
    code, kind, says = FAULTS[name]
    team.run("y = x.clone()")
    with pytest.raises(kind) as caught:
        team.run(code, timeout=30)
    assert says in str(caught.value)
    if name == "a killed rank":
        assert "All ranks were restarted" in str(caught.value)
    else:
        assert set(team.run("x[0].item()")) == {10.0}


def test_a_rank_that_never_joins_is_named_after_the_timeout(team):
    with pytest.raises(RanksStuck) as caught:
        team.run("y = x.clone()\nrank == 3 and time.sleep(9999)\ndist.all_reduce(y)", timeout=5)
    assert caught.value.odd == (3,)
    assert set(team.run("x[0].item()")) == {10.0}


def test_an_interrupt_ends_a_cell_that_waits_on_the_gpu_and_keeps_the_variables(team):
    threading.Timer(2.0, os.kill, (os.getpid(), 2)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        team.run("y = x.clone()\nrank == 3 and time.sleep(9999)\ndist.all_reduce(y); y.sum().item()", timeout=60)
    assert time.monotonic() - began < 10
    assert set(team.run("x[0].item()")) == {10.0}
