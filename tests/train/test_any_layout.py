"""Whatever the model and whoever saved it, a checkpoint comes back whole on any layout: weights, moments, buffers."""

from __future__ import annotations

import random
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import RankFailed, launch
from course_lib.core.model import cross_entropy
from course_lib.core.strategy import Strategy
from course_lib.train.checkpoint.files import Position
from course_lib.train.checkpoint.save_and_load import load_checkpoint, save_checkpoint
from tests.core.test_own_blocks import BATCHES, WAYS, random_model
from tests.train.test_resharding import everything

adam = partial(torch.optim.Adam, lr=0.01)
Contents = dict[str, torch.Tensor]


def build(way: int, seed: int, options: dict) -> Strategy:
    torch.manual_seed(seed + dist.get_rank())
    return WAYS[way][1](random_model(seed).double(), adam, cross_entropy, **options)


def contents(strategy: Strategy) -> tuple[Contents, Contents]:
    """The whole model with what Adam keeps for it, and the buffers that this rank has."""
    return everything(strategy), {name: buffer.clone() for name, buffer in strategy.model.named_buffers()}


def save(folder: Path, way: int, seed: int, options: dict) -> tuple[Contents, Contents]:
    strategy = build(way, seed, options)
    for batch in BATCHES:
        strategy.step(strategy.share(batch))
    save_checkpoint(strategy, folder, Position(2))
    return contents(strategy)


def load(folder: Path, way: int, seed: int, options: dict) -> tuple[Contents, Contents]:
    strategy = build(way, seed, options)
    load_checkpoint(strategy, folder)
    return contents(strategy)


def carried_over(folder: Path, seed: int) -> bool:
    """Save a random model by a random strategy, and load it by another; False if one of the two refuses the model."""
    chance = random.Random(2000 + seed)
    ways = chance.randrange(len(WAYS)), chance.randrange(len(WAYS))
    saver, loader = ((way, seed, WAYS[way][2](chance)) for way in ways)
    told = f"seed {seed}: saved by {WAYS[ways[0]][1].__name__}, loaded by {WAYS[ways[1]][1].__name__}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            saved = launch(save, folder, *saver, ranks=WAYS[ways[0]][0])
            loaded = launch(load, folder, *loader, ranks=WAYS[ways[1]][0])
        except RankFailed as error:
            refusal = str(error).splitlines()[0]
            assert "share" in refusal, f"{told}: {refusal}"
            return False
    whole, buffers = saved[0][0], {}
    for _, of_rank in reversed(list(saved)):  # of several versions, the first rank's
        buffers |= of_rank
    found: set[str] = set()
    for state, of_rank in loaded:
        assert state.keys() == whole.keys(), told
        assert all(torch.equal(state[name], whole[name]) for name in whole), told
        if ways[0] != ways[1] or saver != loader:  # on the same layout, each rank has its own
            assert all(torch.equal(of_rank[name], buffers[name]) for name in of_rank), told
        found |= of_rank.keys()
    assert found == buffers.keys(), told
    return True


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 60), marks=pytest.mark.slow)], ids=["one", "rest"])
def test_a_random_model_comes_back_whole_on_a_random_layout(tmp_path, seeds):
    carried = [carried_over(tmp_path / str(seed), seed) for seed in seeds]
    assert sum(carried) >= len(carried) // 3
