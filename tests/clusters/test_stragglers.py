"""A straggler is named with its cause, whatever the strategy; and nobody is named because the machine is busy."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.core.adding import AddingProblem
from course_lib.core.model import lstm_model, squared_error
from course_lib.data_parallel.ddp import DDP
from course_lib.launcher.tracing.stragglers import Stragglers
from course_lib.pipeline.pipeline import Pipeline
from course_lib.sharding.fsdp import FSDP
from course_lib.sharding.hybrid import Hybrid

DELAY = 0.15  # seconds: on a busy machine, 20 ms are lost among others
BATCH = AddingProblem(16, lengths=(6, 6)).batch(range(16))
WAYS = {
    "ddp": (DDP, {}, 3),
    "fsdp": (FSDP, {}, 2),
    "pipeline": (Pipeline, {"micro_batches": 2}, 3),
    "hybrid": (Hybrid, {"replicas": 2, "micro_batches": 2}, 4),
}


def train(name: str, slow: int | None = None, where: str = "", delay: float = DELAY, updates: int = 12) -> None:
    kind, options, _ = WAYS[name]
    torch.manual_seed(0)
    strategy = kind(lstm_model(features=2, hidden=8, layers=4, outputs=1), torch.optim.SGD, squared_error, **options)
    here = dist.get_rank() == slow

    def slowly(*_) -> None:
        time.sleep(delay / strategy.micro_batches)

    if here and where == "forward":
        next(iter(strategy.model.blocks.values())).register_forward_pre_hook(slowly)
    if here and where == "backward":
        first = next(iter(strategy.model.blocks.values()))
        first.register_forward_hook(lambda _, __, done: done[0].register_hook(slowly) and None)
    for _ in range(updates):
        if here and where == "input":
            time.sleep(delay)
        strategy.step(strategy.share(BATCH))


def stragglers(name: str, *plant) -> Stragglers:
    return launch(train, name, *plant, ranks=WAYS[name][2]).stragglers()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "backward", "input"])
@pytest.mark.parametrize("name", WAYS)
def test_a_planted_delay_is_named(name, where):
    for slow in range(WAYS[name][2]):
        found = stragglers(name, slow, where)
        assert found.slowest == slow, f"rank {slow}, {where}\n{found}\n{found.work}\n{found.core_wait}"


def test_the_sentence_names_the_cause():
    assert "Its `forward` takes longer than the others'." in str(stragglers("ddp", 1, "forward"))


@pytest.fixture
def busy_machine() -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    yield
    for process in spinning:
        process.kill()
        process.wait()


def quick_collectives() -> None:
    for _ in range(12):
        dist.all_reduce(torch.ones(100))


@pytest.mark.slow
def test_on_a_busy_machine_equal_ranks_are_not_accused(busy_machine):
    launches = 12
    for name in WAYS:
        for _ in range(launches):
            found = stragglers(name)
            assert found.slowest is None, f"{name}\n{found}\n{found.work}\n{found.core_wait}"
    for _ in range(launches):
        found = launch(quick_collectives, ranks=3).stragglers()
        assert found.slowest is None, found
