"""What a sharded run has saved goes on in other layouts and comes back, as if one process had trained all along."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.lstm.model import cross_entropy
from course_lib.strategies import STRATEGIES, Single
from course_lib.training.checkpoint import load_checkpoint, save_checkpoint
from course_lib.training.checkpoint.folder import Position
from tests.strategies.test_pipeline import BATCHES, adam, model

# Strategy, ranks and options, one after another: each goes on where the one before stopped.
CHAIN = [
    ("fsdp", 4, {"replicas": 2}),
    ("ddp", 2, {}),
    ("fsdp", 3, {}),
    ("hybrid", 4, {"replicas": 1, "shards": 2}),
    ("pipeline", 2, {}),
    ("hybrid", 3, {"replicas": 1, "shards": 3}),
    ("fsdp", 2, {"reshard_after_forward": False, "micro_batches": 2}),
    ("tensor", 2, {}),
]


def go_on(folder, done, name, options):
    torch.manual_seed(50 + dist.get_rank())
    strategy = STRATEGIES[name](model(3).double(), adam, cross_entropy, clip=0.1, **options)
    if done:
        load_checkpoint(strategy, folder)
    for batch in BATCHES:
        strategy.step(strategy.share(batch))
    save_checkpoint(strategy, folder, Position(done + len(BATCHES)))
    return strategy.full_state()


@pytest.mark.slow
def test_a_run_that_changes_its_layout_again_and_again_is_the_same_as_one_process(tmp_path):
    torch.manual_seed(50)
    twin = Single(model(3).double(), adam, cross_entropy, clip=0.1)
    for number, (name, ranks, options) in enumerate(CHAIN):
        run = launch(go_on, tmp_path, number * len(BATCHES), name, options, ranks=ranks)
        for batch in BATCHES:
            twin.step(batch)
        expected = twin.full_state()
        for rank, found in enumerate(run):
            assert found.keys() == expected.keys()
            for key, tensor in found.items():
                off = (tensor - expected[key]).abs().max().item()
                assert off <= 1e-10, f"{name} on {ranks} ranks, number {number}: rank {rank} is off by {off} in {key}"
