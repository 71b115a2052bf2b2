"""Replicas x stages give the same answer as one process."""

from __future__ import annotations

from functools import partial

import pytest
import torch.distributed as dist

from course_lib import LaunchError, launch
from course_lib.core.model import cross_entropy, lstm_model
from course_lib.core.text import Corpus, Streams
from course_lib.launcher.hangs.call_log import CallLog
from course_lib.model_parallel.placement import Placement
from course_lib.sharding.hybrid import Hybrid
from course_lib.sharding.mesh import mesh_of
from tests.pipeline.test_pipeline import BATCHES, adam, frozen_first_stage, model, prove, prove_all

MESHES = [(2, 2), *(pytest.param(*mesh, marks=pytest.mark.slow) for mesh in ((3, 2), (2, 3), (4, 2)))]


@pytest.mark.parametrize(("replicas", "stages"), MESHES)
def test_every_mesh_is_the_same_as_one_process(replicas, stages):
    variations = [
        {"replicas": replicas, "schedule": schedule, "micro_batches": m, "chunks": c}
        for schedule, m, c in (("gpipe", 3, 1), ("1f1b", 2, 1), ("wavefront", 1, 4), ("wavefront", 2, 3))
    ]
    for variation, proof in zip(variations, prove_all(variations, Hybrid, ranks=replicas * stages), strict=True):
        assert proof, f"{variation}: {proof}"


CORPUS = Corpus.from_text("every replica has its own streams, every stage its own layers. " * 12)
WINDOWS = list(Streams(CORPUS.tokens, streams=6, window=6))[:4]
carrying = {"model": partial(lstm_model, vocabulary=len(CORPUS.vocabulary), hidden=5, layers=2), "batches": WINDOWS}
UNUSUAL = {
    "the norm that clips is that of the whole gradient": {"clip": 0.05},
    "each replica carries the state of its own streams": {**carrying, "chunks": 3, "carry_state": True},
    "frozen blocks are not summed": {"model": frozen_first_stage, "placement": Placement((0, 1, 1, 1))},
    "replicas are neighbors": {"inside": "replicas"},
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_the_same_as_one_process_where(case):
    proof = prove(Hybrid, ranks=4, replicas=2, **{"micro_batches": 2, **UNUSUAL[case]})
    assert proof, proof


def test_replicas_with_fewer_sequences_than_others_or_none_take_part():
    proof = prove(Hybrid, ranks=6, replicas=3, batches=[batch.rows([0, 5]) for batch in BATCHES[:2]])
    assert proof, proof


def test_gradients_are_summed_over_replicas_once_however_many_micro_batches_there_are():
    def all_reduces(micro_batches):
        strategy = Hybrid(model(), adam, cross_entropy, replicas=2, micro_batches=micro_batches)
        batch = strategy.share(BATCHES[0])
        strategy.step(batch)
        before = len(CallLog().calls())
        strategy.step(batch)
        made = [call for call in CallLog().calls()[before:] if call.op == "all_reduce"]
        return len(made), len(list(strategy.model.parameters()))

    for micro_batches in (1, 5):
        for calls, parameters in launch(all_reduces, micro_batches, ranks=4):
            assert calls == parameters + 2  # the count, and the loss


@pytest.mark.parametrize("replicas", [0, 3])
def test_a_mesh_that_does_not_fill_the_ranks_gets_a_sentence(replicas):
    with pytest.raises(Exception, match=rf"replicas={replicas} on 4 ranks: .* choose one of \[1, 2, 4\]"):
        launch(lambda: mesh_of(replicas), ranks=4)


def groups_of(inside: str, shards: int = 1) -> list[list[int]]:
    mesh = mesh_of(2, inside=inside, shards=shards)
    names = [name for name in ("replica", "shard", "stage") if name in mesh.mesh_dim_names]
    return [dist.get_process_group_ranks(mesh.get_group(name)) for name in names]


def test_the_neighbors_are_the_stages_of_a_replica_or_the_replicas_of_a_stage():
    assert launch(groups_of, "stages", ranks=4)[1] == [[1, 3], [0, 1]]
    assert launch(groups_of, "replicas", ranks=4)[1] == [[0, 1], [1, 3]]


@pytest.mark.slow
def test_shards_are_closer_than_replicas():
    assert launch(groups_of, "stages", 2, ranks=8)[0] == [[0, 4], [0, 2], [0, 1]]
    assert launch(groups_of, "replicas", 2, ranks=8)[0] == [[0, 2], [0, 1], [0, 4]]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("rows",), "inside='rows': choose stages or replicas"),
        (
            ("", 3),
            r"replicas=2 shards=3 on 4 ranks: replicas x shards x stages = ranks, so choose a product of",
        ),
    ],
)
def test_a_mesh_that_cannot_be_gets_a_sentence(given, sentence):
    with pytest.raises(LaunchError, match=sentence):
        launch(groups_of, *given, ranks=4)
