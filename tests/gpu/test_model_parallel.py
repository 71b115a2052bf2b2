"""A model cut over ranks that share the GPU is the same as one process; messages are staged through host memory."""

from __future__ import annotations

import pytest
import torch

from course_lib import launch
from course_lib.planning.placement import equal_count, round_robin
from course_lib.strategies import ModelParallel, TensorParallel
from course_lib.training import examples
from tests.strategies.test_accumulation import UNEVEN, plain, prove, text_batches
from tests.strategies.test_model_parallel import BLOCKS, first_blocks_frozen, model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine"),
]


@pytest.mark.parametrize("place", [equal_count, round_robin])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_stages_that_share_the_gpu_are_the_same_as_one_process(ranks, place):
    options = {"placement": place(BLOCKS, ranks), "clip": 0.05}
    proof = prove(ModelParallel, ranks=ranks, model=model, batches=text_batches(UNEVEN)[:3], **options)
    assert proof, proof


def test_frozen_blocks_and_an_empty_batch_on_the_gpu():
    first, second, third = text_batches(UNEVEN)[:3]
    proof = prove(ModelParallel, ranks=2, model=first_blocks_frozen, batches=[first, second.rows([]), third])
    assert proof, proof


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_units_that_share_the_gpu_are_the_same_as_one_process(ranks):
    proof = prove(TensorParallel, ranks=ranks, model=plain, batches=text_batches(UNEVEN)[:3], clip=0.05)
    assert proof, proof


def test_the_lessons_job_is_cut_over_ranks_that_share_the_gpu():
    run = launch(examples.adding, strategy="model", updates=15, hidden=16, layers=2, ranks=2)
    assert run[0]["error"] == pytest.approx(run[1]["error"], abs=1e-6)
