"""Pipelines and meshes whose ranks share a GPU: messages go through host memory, the answer is one process's."""

from __future__ import annotations

import pytest
import torch

from course_lib.strategies import Hybrid, Pipeline
from tests.strategies.test_pipeline import deep, prove_all
from tests.strategies.test_split_backward import HIDDEN, SEQUENCES, STEPS, assert_all_same, both, leaf
from tests.strategies.test_split_backward import model as split_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine"),
]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_schedule_on_stages_that_share_the_gpu_agrees_with_one_process(stages):
    cuts = [("naive", 2, 1), ("gpipe", 5, 1), ("1f1b", 8, 3), ("wavefront", 1, 7), ("wavefront", 2, 3)]
    cuts += [("interleaved", 5, 2), ("looped-bfs", 3, 1), ("zb-h1", 6, 2), ("zb-v", 5, 3)]
    variations = [{"schedule": schedule, "micro_batches": m, "chunks": c} for schedule, m, c in cuts]
    variations += [{"schedule": schedule, "chunks": 2, "recompute": True} for schedule in ("1f1b", "zb-v")]
    for variation, proof in zip(variations, prove_all(variations, Pipeline, ranks=stages, model=deep), strict=True):
        assert proof, f"{variation}: {proof}"


@pytest.mark.parametrize(("replicas", "stages"), [(2, 1), (1, 2), (2, 2), (3, 2)])
def test_every_mesh_on_ranks_that_share_the_gpu_agrees_with_one_process(replicas, stages):
    variations = [
        {"replicas": replicas, "schedule": schedule, "micro_batches": 2, "chunks": chunks}
        for schedule, chunks in (("1f1b", 1), ("wavefront", 3), ("zb-h1", 2), ("zb-v", 1))
    ]
    proofs = prove_all(variations, Hybrid, ranks=replicas * stages, model=deep)
    for variation, proof in zip(variations, proofs, strict=True):
        assert proof, f"{variation}: {proof}"


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_a_split_backward_pass_through_cudnn_gives_what_a_whole_one_gives(apart):
    part = split_model(3).part(1, 5).cuda()
    inputs = leaf(STEPS, SEQUENCES, HIDDEN).cuda().detach().requires_grad_()
    whole, split, first = both(part, inputs, with_state=True, apart=apart)
    assert_all_same(whole, split)
    made_first = {name for name, gradient in first.items() if gradient is not None}
    assert made_first == (set() if apart else {name for name in first if "lstm" in name})
