"""Replicas x stages give the same answer as one process."""

from __future__ import annotations

from functools import partial

import pytest
import torch.distributed as dist

from course_lib import LaunchError, launch
from course_lib.data import Corpus, Streams
from course_lib.launchers.diagnosis.call_log import CallLog
from course_lib.lstm.model import cross_entropy, lstm_model
from course_lib.planning.placement import Placement
from course_lib.strategies import Hybrid
from course_lib.strategies.mesh import mesh_of
from tests.strategies.test_pipeline import BATCHES, adam, frozen_first_stage, model, prove, prove_all

MESHES = [(2, 2), *(pytest.param(*mesh, marks=pytest.mark.slow) for mesh in ((3, 2), (2, 3), (4, 2)))]


@pytest.mark.parametrize(("replicas", "stages"), MESHES)
def test_every_mesh_is_the_same_as_one_process(replicas, stages):
    variations = [
        {"replicas": replicas, "schedule": schedule, "micro_batches": m, "chunks": c}
        for schedule, m, c in (("gpipe", 3, 1), ("1f1b", 2, 1), ("wavefront", 1, 4), ("wavefront", 2, 3))
    ]
    for variation, proof in zip(variations, prove_all(variations, Hybrid, ranks=replicas * stages), strict=True):
        assert proof, f"{variation}: {proof}"


def test_the_norm_that_clips_is_that_of_the_whole_gradient():
    proof = prove(Hybrid, ranks=4, replicas=2, clip=0.05)
    assert proof, proof


def test_each_replica_carries_the_state_of_its_own_streams():
    corpus = Corpus.from_text("every replica has its own streams, every stage its own layers. " * 12)
    windows = list(Streams(corpus.tokens, streams=6, window=6))[:4]
    whole = partial(lstm_model, vocabulary=len(corpus.vocabulary), hidden=5, layers=2)
    proof = prove(
        Hybrid, ranks=4, replicas=2, model=whole, batches=windows, micro_batches=2, chunks=3, carry_state=True
    )
    assert proof, proof


def test_frozen_blocks_are_not_summed():
    proof = prove(Hybrid, ranks=4, replicas=2, model=frozen_first_stage, placement=Placement((0, 1, 1, 1)))
    assert proof, proof


def test_replicas_with_fewer_sequences_than_others_or_none_take_part():
    proof = prove(Hybrid, ranks=6, replicas=3, batches=[batch.rows([0, 5]) for batch in BATCHES[:2]])
    assert proof, proof


def test_the_mesh_is_a_row_per_replica_and_a_column_per_stage():
    def where():
        mesh = mesh_of(2)
        groups = (mesh.get_group(name) for name in ("replica", "stage"))
        return tuple(mesh.get_coordinate()), *(dist.get_process_group_ranks(group) for group in groups)

    assert launch(where, ranks=6)[4] == ((1, 1), [1, 4], [3, 4, 5])


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


class ForgetsReplicas(Hybrid):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.sum_over_replicas.parts = [[] for _ in self.sum_over_replicas.parts]


def test_replicas_that_do_not_meet_are_found_out():
    assert not prove(ForgetsReplicas, ranks=4, replicas=2, batches=BATCHES[:1])


@pytest.mark.parametrize("replicas", [0, 3])
def test_a_mesh_that_does_not_fill_the_ranks_gets_a_sentence(replicas):
    with pytest.raises(Exception, match=rf"replicas={replicas} on 4 ranks: .* choose one of \[1, 2, 4\]"):
        launch(lambda: mesh_of(replicas), ranks=4)


def groups_of(inside: str) -> tuple[list[int], list[int]]:
    mesh = mesh_of(2, inside=inside)
    return tuple(dist.get_process_group_ranks(mesh.get_group(name)) for name in ("replica", "stage"))


def test_the_neighbors_are_the_stages_of_a_replica_or_the_replicas_of_a_stage():
    assert launch(groups_of, "stages", ranks=4)[1] == ([1, 3], [0, 1])
    assert launch(groups_of, "replicas", ranks=4)[1] == ([0, 1], [1, 3])


def test_with_replicas_inside_it_is_the_same_as_one_process():
    proof = prove(Hybrid, ranks=4, replicas=2, inside="replicas", micro_batches=2)
    assert proof, proof


def test_an_unknown_order_of_the_mesh_is_refused():
    with pytest.raises(LaunchError, match="inside='rows': choose stages or replicas"):
        launch(groups_of, "rows", ranks=2)
