"""A GPT through the strategies that were written for an LSTM: the same answer as one process, or a sentence."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from course_lib import launch
from course_lib.core.model import cross_entropy
from course_lib.core.strategy import Single
from course_lib.data_parallel.ddp import DDP, Accumulation
from course_lib.model_parallel.model_parallel import ModelParallel
from course_lib.model_parallel.tensor_parallel import TensorParallel
from course_lib.pipeline.pipeline import Pipeline
from course_lib.sharding.fsdp import FSDP
from course_lib.sharding.hybrid import Hybrid
from course_lib.transformer.gpt import GPTBlock, gpt_model
from tests.data_parallel.test_accumulation import UNEVEN, VOCABULARY, adam, prove, text_batches

small = partial(gpt_model, vocabulary=VOCABULARY, hidden=8, layers=2, heads=4)
BATCHES = text_batches(UNEVEN)[:2]
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("strategy", "ranks", "options"),
    [
        (DDP, 2, {}),
        pytest.param(FSDP, 2, {"clip": 0.05}, marks=slow),
        (Pipeline, 2, {"micro_batches": 2}),
        (TensorParallel, 2, {"clip": 0.05}),
        pytest.param(DDP, 4, {}, marks=slow),
        pytest.param(FSDP, 4, {"replicas": 2}, marks=slow),
        pytest.param(TensorParallel, 4, {}, marks=slow),
        pytest.param(Accumulation, 2, {"micro_batches": 3}, marks=slow),
        pytest.param(ModelParallel, 2, {}, marks=slow),
        pytest.param(ModelParallel, 4, {}, marks=slow),
        pytest.param(Pipeline, 4, {"schedule": "zb-h1"}, marks=slow),
        pytest.param(Pipeline, 4, {"schedule": "gpipe", "recompute": True}, marks=slow),
        pytest.param(Hybrid, 4, {"replicas": 2, "micro_batches": 2}, marks=slow),
        pytest.param(Hybrid, 4, {"replicas": 1, "shards": 2, "micro_batches": 2}, marks=slow),
        (Pipeline, 2, {"model": partial(small, cache=True), "schedule": "wavefront", "micro_batches": 1, "chunks": 3}),
        pytest.param(TensorParallel, 2, {"model": partial(small, hidden=12, layers=1, heads=3)}, marks=slow),
        pytest.param(DDP, 2, {"batches": [BATCHES[0], BATCHES[1].rows([0])]}, marks=slow),  # a rank has no sequences
    ],
)
def test_a_gpt_is_the_same_as_one_process(strategy, ranks, options):
    proof = prove(strategy, ranks=ranks, **{"model": small, "batches": BATCHES, **options})
    assert proof, proof
    assert len(proof.steps) == 2 * ranks


def test_tensor_parallelism_communicates_four_times_per_block_however_long_the_sequences():
    def update(steps):
        strategy = TensorParallel(small(), adam, cross_entropy)
        strategy.step(text_batches([steps] * 3)[0])

    for steps in (3, 12):
        run = launch(update, steps, ranks=2)
        assert sum(span.rank == 0 and span.name == "communication" for span in run.spans) == 2 * 4


def test_a_block_in_two_chunks_has_the_outputs_and_gradients_of_the_whole():
    def gradients(cuts):
        torch.manual_seed(0)
        block = GPTBlock(8, heads=2, cache=True).double()
        inputs = torch.randn(7, 3, 8, dtype=torch.float64, requires_grad=True)
        state, outputs = None, []
        for part in inputs.tensor_split(cuts):
            output, state = block(part, state)
            outputs.append(output)
        whole = torch.cat(outputs)
        (whole * torch.linspace(0, 1, whole.numel(), dtype=torch.float64).view_as(whole)).sum().backward()
        return [whole, inputs.grad, *(parameter.grad for parameter in block.parameters())]

    torch.testing.assert_close(gradients([4]), gradients([]), rtol=0, atol=1e-12)


def test_a_step_sees_no_later_step_and_knows_its_position():
    torch.manual_seed(0)
    model = small().double()
    tokens = torch.tensor([[1, 1], [2, 3], [3, 2], [4, 4]])
    before = model(tokens)[0]
    after = model(torch.cat([tokens[:3], tokens[3:] + 1]))[0]
    assert torch.equal(before[:3], after[:3])
    assert (before[3] - after[3]).abs().max() > 1e-3
    assert (before[3, 0] - before[3, 1]).abs().max() > 1e-3  # the same tokens in a different order


@pytest.mark.parametrize(
    ("strategy", "model", "options", "words"),
    [
        (Single, small, {"carry_state": True}, "no state of a fixed size to carry"),
        (Pipeline, small, {"schedule": "wavefront", "chunks": 2}, "gpt_model(cache=True)"),
        (TensorParallel, partial(small, heads=1), {}, "a GPT block with 1 heads on 2 ranks"),
    ],
)
def test_what_would_train_wrongly_is_refused_with_a_sentence(strategy, model, options, words):
    def refusal():
        try:
            strategy(model(), adam, cross_entropy, **options)
        except ValueError as error:
            return str(error)

    for said in launch(refusal, ranks=2):
        assert words in said


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"hidden": 10}, "needs a multiple of 8"),
        ({"layers": 0}, "a model needs at least one of each"),
        ({"features": 2}, "but not both"),
    ],
)
def test_sizes_that_make_no_model_are_refused(sizes, words):
    with pytest.raises(ValueError, match=words):
        gpt_model(**{"vocabulary": 5, "hidden": 8, "layers": 1} | sizes)
