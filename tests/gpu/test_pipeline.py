"""Pipelines and meshes whose ranks share a GPU: messages go through host memory, the answer is one process's."""

from __future__ import annotations

import pytest
import torch

from course_lib.strategies import Hybrid, Pipeline
from tests.strategies.test_pipeline import prove_all

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine"),
]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_schedule_on_stages_that_share_the_gpu_agrees_with_one_process(stages):
    cuts = (("naive", 2, 1), ("gpipe", 5, 1), ("1f1b", 8, 3), ("wavefront", 1, 7), ("wavefront", 2, 3))
    variations = [{"schedule": schedule, "micro_batches": m, "chunks": c} for schedule, m, c in cuts]
    for variation, proof in zip(variations, prove_all(variations, Pipeline, ranks=stages), strict=True):
        assert proof, f"{variation}: {proof}"


@pytest.mark.parametrize(("replicas", "stages"), [(2, 1), (1, 2), (2, 2), (3, 2)])
def test_every_mesh_on_ranks_that_share_the_gpu_agrees_with_one_process(replicas, stages):
    variations = [
        {"replicas": replicas, "schedule": schedule, "micro_batches": 2, "chunks": chunks}
        for schedule, chunks in (("1f1b", 1), ("wavefront", 3))
    ]
    for variation, proof in zip(variations, prove_all(variations, Hybrid, ranks=replicas * stages), strict=True):
        assert proof, f"{variation}: {proof}"
