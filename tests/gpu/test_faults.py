"""A fault over NCCL is reported as over gloo: the rank, the collective, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
import torch
import torch.distributed as dist

from course_lib import CollectivesDiffer, RankDied, RankFailed, RanksStuck, device, launch
from course_lib.pipeline import message_order as mail
from course_lib.pipeline.pipeline import Pipeline
from course_lib.runtime import machine
from tests.conftest import wait_until
from tests.pipeline.test_messages import receives_posted_ahead
from tests.pipeline.test_pipeline import BATCHES, adam, cross_entropy, deep

pytestmark = pytest.mark.usefixtures("over_nccl")
RANKS = 4
SOON = 10.0  # seconds after which a fault that is certain has been told


def summed(numbers: int = 1000, dtype: torch.dtype = torch.float32) -> float:
    """An all-reduce, and its result: the rank waits for its GPU."""
    total = torch.ones(numbers, device=device(), dtype=dtype)
    dist.all_reduce(total)
    return total[0].item()


@pytest.fixture(scope="module")
def used_before() -> int:
    """MiB of the GPU that are used before a fault. The first launch starts the ranks' server, and MPS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_LIB_BACKEND", "" if machine.why_not_nccl(RANKS) else "nccl")
        launch(summed, ranks=RANKS, timeout=120)
    return min(memory_used() for _ in range(5))


@pytest.fixture(autouse=True)
def works_afterwards(used_before):
    yield
    assert works_again() == [RANKS] * RANKS
    assert wait_until(lambda: memory_used() <= used_before + 64, 5), "something is left on the GPU"


def works_again() -> list[float]:
    """What the next launch returns. MPS, where ranks share a GPU, needs seconds to recover from killed clients."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return list(launch(summed, ranks=RANKS))
        except RankFailed as error:
            if "busy or unavailable" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def memory_used() -> int:
    """MiB of the GPU that are used now, by whomever."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def failed(kind, fault, timeout: float = 60.0):
    """The error that a launch ends with when rank 2 does this and the others an all-reduce."""

    def work():
        summed()
        return fault() if dist.get_rank() == 2 else summed()

    began = time.monotonic()
    with pytest.raises(kind) as caught:
        launch(work, ranks=RANKS, timeout=timeout)
    assert time.monotonic() - began < (SOON if timeout == 60.0 else timeout + SOON)
    return caught.value


def test_a_rank_that_raises():
    def fault():
        raise ValueError("no data")

    error = failed(RankFailed, fault)
    assert error.rank == 2
    assert "ValueError: no data" in str(error)


@pytest.mark.parametrize("exitcode", [-9, 3], ids=["killed", "leaves"])
def test_a_rank_that_dies(exitcode):
    error = failed(RankDied, lambda: os.kill(os.getpid(), 9) if exitcode < 0 else os._exit(exitcode))
    assert (error.rank, error.exitcode) == (2, exitcode)


def test_a_rank_that_returns_early():
    error = failed(RanksStuck, lambda: None)
    assert error.odd == (2,)
    assert "wait in all_reduce for rank 2, which has returned" in str(error)


def test_a_rank_that_never_joins():
    error = failed(RanksStuck, lambda: time.sleep(1000), timeout=5.0)
    assert error.odd == (2,)
    assert {error.where[rank].collective for rank in (0, 1, 3)} == {"all_reduce"}
    assert "time.sleep(1000)" in str(error.where[2])


def test_a_kernel_that_never_ends():
    def fault():
        torch.cuda._sleep(10**13)
        return summed()

    error = failed(RanksStuck, fault, timeout=5.0)
    assert error.odd == (2,)
    assert [error.where[rank].doing for rank in range(RANKS)] == ["waiting", "waiting", "computing", "waiting"]


def broadcast(numbers: int) -> float:
    total = torch.ones(numbers, device=device())
    dist.broadcast(total, 0)
    return total[0].item()


@pytest.mark.parametrize(
    ("fault", "called"),
    [
        (lambda: broadcast(1000), "broadcast of float32 [1000]"),
        (lambda: summed(2000), "all_reduce of float32 [2000]"),
        (lambda: summed(1000, torch.float64), "all_reduce of float64 [1000]"),
    ],
    ids=["another collective", "another size", "another dtype"],
)
def test_a_rank_that_calls_something_else(fault, called):
    error = failed(CollectivesDiffer, fault)
    assert error.rank == 2
    assert error.calls[2].startswith(called)
    assert error.calls[0] == "all_reduce of float32 [1000]"


def test_a_rank_whose_gpu_has_no_room():
    error = failed(RankFailed, lambda: torch.empty(1 << 45, dtype=torch.uint8, device=device()))
    assert error.rank == 2
    assert "OutOfMemoryError" in str(error)


def test_ranks_that_all_receive():
    def work():
        summed()
        peer = dist.get_rank() ^ 1
        received = torch.empty(10, device=device())
        (message,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, peer)])
        message.wait()
        return received.sum().item()

    began = time.monotonic()
    with pytest.raises(RanksStuck, match="every rank waits in recv, and no rank sends"):
        launch(work, ranks=RANKS, timeout=60)
    assert time.monotonic() - began < SOON


def test_receives_that_are_posted_ahead_of_their_time_stop_a_pipeline():
    """What our pipelines did, and what anybody's would on two GPUs: the reason for pipeline/message_order.py."""

    def step():
        mail.postings_of = receives_posted_ahead
        torch.manual_seed(0)
        Pipeline(deep().double(), adam, cross_entropy, schedule="1f1b", micro_batches=1).step(BATCHES[0])
        torch.cuda.synchronize()

    with pytest.raises(RanksStuck):
        launch(step, ranks=2, timeout=15)
