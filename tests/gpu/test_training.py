"""One GPU trains as one CPU does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from course_lib import launch
from course_lib.core.adding import AddingProblem
from course_lib.core.memory import predict_memory
from course_lib.core.model import cross_entropy, lstm_model, squared_error
from course_lib.core.proof import same_as_one_process
from course_lib.core.strategy import Single
from course_lib.core.text import Corpus
from course_lib.data_parallel.ddp import Accumulation
from course_lib.model_parallel.model_parallel import ModelParallel
from course_lib.one_device.measurement import measure_memory
from course_lib.train.job import train_job
from course_lib.train.settings import Settings
from tests.data_parallel.test_accumulation import UNEVEN, UNIFORM, frozen_and_tied, plain, prove, text_batches
from tests.model_parallel.test_model_parallel import first_blocks_frozen
from tests.pipeline.test_split_backward import HIDDEN, SEQUENCES, STEPS, assert_all_same, both, leaf
from tests.pipeline.test_split_backward import model as split_model

adam = partial(torch.optim.Adam, lr=0.01)


def model():
    return lstm_model(features=2, hidden=32, layers=2, outputs=1)


def test_the_adding_problem_is_learned_on_the_gpu():
    for precision in ("fp32", "bf16"):
        run = launch(train_job, Settings(updates=300, layers=1, precision=precision), ranks=1)
        assert run[0]["loss"] < 0.05


def test_cudnn_gives_the_cpus_loss_and_gradient():
    batch = AddingProblem(16, (5, 20), dtype=torch.float64).batch(range(16))
    torch.manual_seed(0)
    on_cpu = model().double()
    on_gpu = Single(model().double(), adam, squared_error)
    on_gpu.model.load_state_dict(on_cpu.state_dict())
    total, count = squared_error(on_cpu(batch.inputs)[0], batch)
    (total / count).backward()
    loss, _ = on_gpu.step(batch)
    assert loss.item() == pytest.approx((total / count).item(), abs=1e-10)
    expected = {name: parameter.grad for name, parameter in on_cpu.named_parameters()}
    torch.testing.assert_close(on_gpu.full_gradients(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("lengths", [UNIFORM, UNEVEN], ids=["uniform", "uneven"])
@pytest.mark.parametrize("kind", [plain, frozen_and_tied])
def test_padding_data_parallelism_and_accumulation_agree_with_one_process(ranks, micro_batches, lengths, kind):
    proof = same_as_one_process(
        Accumulation,
        ranks=ranks,
        micro_batches=micro_batches,
        model=kind,
        batches=text_batches(lengths),
        optimizer=adam,
        loss=cross_entropy,
    )
    assert proof, proof


def test_lengths_stay_on_the_cpu_and_packing_gives_the_masked_gradient():
    corpus = Corpus.from_text("a b. c d e f g h i j k l m n. o p q. r s t u v w x y z.")
    batch = corpus.batch(range(4)).to("cuda")
    layer = torch.nn.LSTM(1, 4).double().cuda()
    inputs = batch.inputs[..., None].double()
    packed = pack_padded_sequence(inputs, batch.lengths, enforce_sorted=False)
    outputs = pad_packed_sequence(layer(packed)[0], total_length=batch.steps)[0]
    assert (outputs - layer(inputs)[0]).abs()[batch.valid].max() < 1e-10


def test_measured_memory_on_the_gpu_is_near_the_formula():
    batch = AddingProblem(64, (50, 50)).batch(range(64))
    strategy = Single(lstm_model(features=2, hidden=128, layers=2, outputs=1), adam, squared_error)
    measured, predicted = measure_memory(strategy, batch), predict_memory(strategy.model, batch)
    assert measured.parameters == predicted.parameters
    assert predicted.activations / 2 < measured.activations < 3 * predicted.activations


def test_frozen_blocks_and_an_empty_batch_on_the_gpu(backend):
    first, second, third = text_batches(UNEVEN)[:3]
    proof = prove(ModelParallel, ranks=2, model=first_blocks_frozen, batches=[first, second.rows([]), third])
    assert proof, proof


def test_a_training_run_is_cut_over_ranks_that_share_the_gpu(backend):
    run = launch(train_job, Settings("model", updates=15, hidden=16), ranks=2)
    assert run[0]["loss"] == pytest.approx(run[1]["loss"], abs=1e-6)


def test_a_split_backward_pass_through_cudnn_gives_what_a_whole_one_gives():
    part = split_model(3).part(1, 5).cuda()
    inputs = leaf(STEPS, SEQUENCES, HIDDEN).cuda().detach().requires_grad_()
    whole, split, first = both(part, inputs, with_state=True)
    assert_all_same(whole, split)
    made_first = {name for name, gradient in first.items() if gradient is not None}
    assert made_first == {name for name in first if "lstm" in name}
