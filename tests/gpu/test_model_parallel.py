"""A model cut over ranks: what the grid of test_strategies.py has not."""

from __future__ import annotations

import pytest
import torch

from course_lib import launch
from course_lib.strategies import ModelParallel
from course_lib.training import Settings, train_job
from tests.strategies.test_accumulation import UNEVEN, prove, text_batches
from tests.strategies.test_model_parallel import first_blocks_frozen

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine"),
]


def test_frozen_blocks_and_an_empty_batch_on_the_gpu(backend):
    first, second, third = text_batches(UNEVEN)[:3]
    proof = prove(ModelParallel, ranks=2, model=first_blocks_frozen, batches=[first, second.rows([]), third])
    assert proof, proof


def test_a_training_run_is_cut_over_ranks_that_share_the_gpu(backend):
    run = launch(train_job, Settings("model", updates=15, hidden=16), ranks=2)
    assert run[0]["loss"] == pytest.approx(run[1]["loss"], abs=1e-6)
