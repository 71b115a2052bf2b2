"""Every way to train is the same as one process, in float64, after every step, over gloo and over NCCL."""

from __future__ import annotations

from functools import partial

import pytest

from course_lib.core.model import lstm_model
from course_lib.core.text import Corpus, Streams
from course_lib.data_parallel.ddp import DDP, Accumulation
from course_lib.model_parallel.model_parallel import ModelParallel
from course_lib.model_parallel.placement import round_robin
from course_lib.model_parallel.tensor_parallel import TensorParallel
from course_lib.pipeline.named_schedules import SCHEDULES
from course_lib.pipeline.pipeline import Pipeline
from course_lib.sharding.fsdp import FSDP
from course_lib.sharding.hybrid import Hybrid
from tests.pipeline import test_pipeline
from tests.pipeline.test_pipeline import BATCHES, prove_all

RANKS = [1, 2, 4, 8]
deep = partial(test_pipeline.model, layers=14)  # 16 blocks: two virtual stages on each of 8 ranks
EMPTY = [*BATCHES, BATCHES[0].rows([0, 5]), BATCHES[1].rows([])]  # some ranks, then all, have nothing to do
CORPUS = Corpus.from_text("every replica has its own streams, every stage its own layers. " * 30)


def assert_same(variations, strategy, **given) -> None:
    for variation, proof in zip(variations, prove_all(variations, strategy, **given), strict=True):
        assert proof, f"{variation}: {proof}"


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("strategy", "variations"),
    [
        (DDP, [{}, {"clip": 0.05}, {"bucket_cap_mb": 0.0001}]),
        (Accumulation, [{"micro_batches": 3}, {"micro_batches": 4, "clip": 0.05}]),
        (ModelParallel, [{}, {"clip": 0.05}]),
        (TensorParallel, [{"clip": 0.05}]),
        (Pipeline, [{"clip": 0.05}, {"schedule": "wavefront", "micro_batches": 2, "chunks": 3, "clip": 0.05}]),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_uneven_batches_and_empty_shares(backend, strategy, variations, ranks):
    assert_same(variations, strategy, ranks=ranks, model=deep, batches=EMPTY)


@pytest.mark.parametrize("ranks", [2, 4])
def test_blocks_dealt_out_in_turn(backend, ranks):
    assert_same([{"placement": round_robin(16, ranks)}], ModelParallel, ranks=ranks, model=deep)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_every_schedule(backend, stages):
    cuts = ((1, 3), (5, 1), (8, 2)) if stages < 8 else ((8, 2),)
    variations = [{"schedule": name, "micro_batches": m, "chunks": c} for name in SCHEDULES for m, c in cuts]
    variations += [{"schedule": name, "chunks": 2, "recompute": True} for name in ("1f1b", "wavefront", "zb-v")]
    assert_same(variations, Pipeline, ranks=stages, model=deep)


@pytest.mark.parametrize(("replicas", "stages"), [(2, 1), (1, 2), (2, 2), (3, 2), (2, 4), (4, 2)])
def test_every_mesh(backend, replicas, stages):
    cuts = (("1f1b", 1), ("wavefront", 3), ("zb-h1", 2), ("zb-v", 1), ("interleaved", 1))
    variations = [{"replicas": replicas, "schedule": name, "micro_batches": 2, "chunks": c} for name, c in cuts]
    assert_same([*variations, {"replicas": replicas, "clip": 0.05}], Hybrid, ranks=replicas * stages, model=deep)


@pytest.mark.parametrize(("replicas", "shards", "stages"), [(1, 2, 1), (1, 2, 2), (2, 2, 1), (2, 2, 2), (1, 4, 2)])
def test_pipelines_that_share_an_optimizer(over_nccl, replicas, shards, stages):
    """Over NCCL, as FSDP: weights are gathered before a receive is posted, and gradients reduced while some are."""
    mesh = {"replicas": replicas, "shards": shards}
    cuts = (("1f1b", 1), ("wavefront", 3), ("zb-h1", 2), ("zb-v", 1), ("interleaved", 1))
    variations = [{**mesh, "schedule": name, "micro_batches": 2, "chunks": c} for name, c in cuts]
    variations += [{**mesh, "clip": 0.05}, {**mesh, "inside": "replicas", "recompute": True}]
    assert_same(variations, Hybrid, ranks=replicas * shards * stages, model=deep, batches=EMPTY)


@pytest.mark.parametrize(
    ("strategy", "ranks", "options"),
    [
        (DDP, 4, {}),
        (Pipeline, 4, {"micro_batches": 2, "chunks": 3}),
        (Hybrid, 8, {"replicas": 2, "micro_batches": 2, "chunks": 3}),
        (Hybrid, 4, {"replicas": 1, "shards": 2, "micro_batches": 2, "chunks": 3}),
    ],
)
def test_a_state_that_is_carried_from_batch_to_batch(backend, strategy, ranks, options):
    windows = list(Streams(CORPUS.tokens, streams=8, window=6))[:4]
    whole = partial(lstm_model, vocabulary=len(CORPUS.vocabulary), hidden=5, layers=6)
    assert_same([{**options, "carry_state": True}], strategy, ranks=ranks, model=whole, batches=windows)


@pytest.mark.parametrize("ranks", RANKS)
def test_shards(over_nccl, ranks):
    """Not over gloo: there, FSDP2 on ranks that share a GPU ends in a segmentation fault inside PyTorch 2.11."""
    variations = [{}, {"clip": 0.05}, {"reshard_after_forward": False}, {"micro_batches": 2}]
    variations += [{"replicas": replicas} for replicas in (2, 4) if replicas < ranks]
    assert_same(variations, FSDP, ranks=ranks, model=deep, batches=EMPTY)
