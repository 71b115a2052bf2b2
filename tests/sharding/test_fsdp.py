"""A model of which every rank has some rows gives the same answer as one process."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from course_lib import RankFailed, launch
from course_lib.core.model import cross_entropy, lstm_model
from course_lib.core.proof import prove_all
from course_lib.core.shards import local_part, local_rows
from course_lib.core.text import Corpus, Streams
from course_lib.data_parallel.ddp import DDP
from course_lib.one_device.loop import evaluate
from course_lib.one_device.measurement import measure_memory
from course_lib.sharding.fsdp import FSDP, shard_blocks
from tests.data_parallel.test_accumulation import (
    UNEVEN,
    UNIFORM,
    VOCABULARY,
    adam,
    frozen_and_tied,
    plain,
    prove,
    text_batches,
)

WAYS = [{}, {"reshard_after_forward": False}, {"micro_batches": 3}, {"clip": 0.05}, {"clip": 0.05, "micro_batches": 2}]


SHARDED = [(ranks, 1, UNEVEN) for ranks in (2, 3)]
SHARDED += [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in ((1, 1, UNEVEN), (1, 1, UNIFORM), (2, 1, UNIFORM), (3, 1, UNIFORM), (4, 2, UNEVEN), (4, 4, UNEVEN))
]


@pytest.mark.parametrize(("ranks", "replicas", "lengths"), SHARDED)
def test_every_way_to_shard_is_the_same_as_one_process(ranks, replicas, lengths):
    ways = [{"replicas": replicas, **way} for way in WAYS]
    common = {"model": plain, "batches": text_batches(lengths)[:3], "optimizer": adam, "loss": cross_entropy}
    for way, proof in zip(ways, prove_all(ways, FSDP, ranks=ranks, **common), strict=True):
        assert proof, f"{way}: {proof}"
        assert len(proof.steps) == 3 * ranks


first, second, third = text_batches(UNEVEN)[:3]
tiny = partial(lstm_model, vocabulary=VOCABULARY, hidden=1, layers=1)
CORPUS = Corpus.from_text("each rank carries the states of its own streams, from window to window. " * 12)
WINDOWS = list(Streams(CORPUS.tokens, streams=7, window=5))[:4]
carrying = {"model": partial(lstm_model, vocabulary=len(CORPUS.vocabulary), hidden=5, layers=2), "batches": WINDOWS}
UNUSUAL = [
    (2, {"batches": [first, second.rows([]), third]}),
    (4, {"model": tiny, "batches": [batch.rows([0, 1, 2]) for batch in (first, second)]}),  # ranks without rows
    pytest.param(2, {**carrying, "carry_state": True, "clip": 0.05}, marks=pytest.mark.slow),
    pytest.param(2, {**carrying, "carry_state": True, "clip": 0.05, "micro_batches": 3}, marks=pytest.mark.slow),
    *(pytest.param(2, {"model": frozen_and_tied, **way}, marks=pytest.mark.slow) for way in WAYS[:3]),
]


@pytest.mark.parametrize(("ranks", "case"), UNUSUAL)
def test_unusual_models_and_batches_are_trained_as_by_one_process(ranks, case):
    proof = prove(FSDP, ranks=ranks, **{"model": plain, "batches": text_batches(UNEVEN)[:3], **case})
    assert proof, proof


def test_a_forward_pass_alone_leaves_the_shards_as_they_were():
    def evaluated(reshard_after_forward):
        strategy = FSDP(plain(), adam, cross_entropy, reshard_after_forward=reshard_after_forward)
        (batch, *_) = text_batches(UNEVEN)
        before = [local_part(shard.tensor).shape for shard in strategy.shards().values()]
        loss = evaluate(strategy, [batch])
        after = [local_part(shard.tensor).shape for shard in strategy.checked_shards().values()]
        return loss > 0, before == after

    for reshard_after_forward in (True, False):
        assert set(launch(evaluated, reshard_after_forward, ranks=2)) == {(True, True)}


def test_rows_are_cut_as_torch_cuts_them():
    for rows in range(9):
        for ranks in range(1, 6):
            pieces = torch.arange(rows).chunk(ranks)
            expected = [piece.tolist() for piece in pieces] + [[]] * (ranks - len(pieces))
            found = [list(local_rows(rows, place, ranks)) for place in range(ranks)]
            assert found == (expected if rows else [[]] * ranks)


def test_the_layers_of_a_sharded_model_move_no_weights():
    def moved():
        from torch.distributed.device_mesh import init_device_mesh

        model = plain()
        shard_blocks(model, init_device_mesh("cpu", (1,)), reshard_after_forward=True)
        return [module.flatten_parameters.__name__ for module in model.modules() if hasattr(module, "bias_ih_l0")]

    assert launch(moved, ranks=1)[0] == ["_do_nothing"] * 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"replicas": 3}, r"replicas=3 on 2 ranks: replicas x shards = ranks, so choose one of \[1, 2\]"),
        ({"micro_batches": 0}, "micro_batches=0: a share is cut into at least one micro-batch"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(options, sentence):
    def make():
        FSDP(plain(), adam, cross_entropy, **options)

    with pytest.raises(RankFailed, match=sentence):
        launch(make, ranks=2)


def test_gathered_parameters_are_no_activations():
    def measured(kind, **options):
        strategy = kind(plain(), adam, cross_entropy, **options)
        return measure_memory(strategy, strategy.share(text_batches(UNEVEN)[0]))

    sharded, whole = launch(measured, FSDP, ranks=2)[0], launch(measured, DDP, ranks=2)[0]
    assert sharded.activations == whole.activations > 0
    rows = sum(len(local_rows(len(p), 0, 2)) * p[0].numel() for p in plain().parameters())
    assert (sharded.parameters, sharded.gradients) == (4 * rows, 4 * rows)
    assert rows < 0.6 * sum(p.numel() for p in plain().parameters())
