"""A layer cut inside its cell gives the same answer as one process, however its units are shared out."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from course_lib import launch
from course_lib.core.model import Recurrent, SequenceModel, cross_entropy, lstm_model
from course_lib.core.text import Corpus, Streams
from course_lib.model_parallel.tensor_parallel import ShardedRecurrent, TensorParallel
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


def short(lengths: list[int]):
    """Three batches of at most 6 steps: every step is a message."""
    return text_batches([min(6, length) for length in lengths])[:3]


@pytest.mark.parametrize(
    "lengths", [pytest.param(UNIFORM, id="uniform", marks=pytest.mark.slow), pytest.param(UNEVEN, id="uneven")]
)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_five_units_on_any_number_of_ranks_are_the_same_as_one_process(ranks, lengths):
    proof = prove(TensorParallel, ranks=ranks, model=plain, batches=short(lengths))
    assert proof, proof
    assert len(proof.steps) == 3 * ranks


first, second, third = short(UNEVEN)
CORPUS = Corpus.from_text("the state is whole on every rank, between windows. " * 12)
WINDOWS = list(Streams(CORPUS.tokens, streams=4, window=5))[:4]
carrying = {"model": partial(lstm_model, vocabulary=len(CORPUS.vocabulary), hidden=5, layers=2), "batches": WINDOWS}
two_units = partial(lstm_model, vocabulary=VOCABULARY, hidden=2, layers=2)
UNUSUAL = {
    "a rank without units": (3, {"model": two_units, "clip": 0.05}),
    "replicated blocks count once in the norm": (2, {"clip": 0.05}),
    "frozen and tied weights": (2, {"model": frozen_and_tied, "clip": 0.05}),
    "an empty batch": (2, {"batches": [first, second.rows([]), third]}),
    "the state is carried": (2, {**carrying, "carry_state": True}),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_the_same_as_one_process_with(case):
    ranks, options = UNUSUAL[case]
    proof = prove(TensorParallel, ranks=ranks, **{"model": plain, "batches": short(UNEVEN), **options})
    assert proof, proof


def test_a_sequence_in_two_chunks_has_the_gradient_of_the_whole():
    def gradients(cut):
        torch.manual_seed(0)
        whole = Recurrent(5).double()
        layer = ShardedRecurrent(whole) if cut else whole
        inputs = torch.randn(7, 3, 5, dtype=torch.float64, requires_grad=True)
        state = tuple(torch.randn(1, 3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
        first, between = layer(inputs[:4], state)
        second, (h, c) = layer(inputs[4:], between)
        (first.square().sum() + second.sum() + (h * c).sum()).backward()
        return [tensor.grad for tensor in (inputs, *state)]

    expected = launch(gradients, False, ranks=1)[0]
    for found in launch(gradients, True, ranks=2):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("layers", "steps"), [(1, 4), (3, 6)])
def test_it_communicates_at_every_step_of_every_layer_forward_and_backward(layers, steps):
    def update():
        strategy = TensorParallel(lstm_model(vocabulary=VOCABULARY, hidden=5, layers=layers), adam, cross_entropy)
        strategy.step(text_batches([steps] * 3)[0])

    run = launch(update, ranks=2)
    for rank in range(2):
        sent = sum(span.rank == rank and span.name == "communication" for span in run.spans)
        assert sent == layers * (2 * steps + 1)


def test_a_rank_has_only_its_own_rows():
    def sizes():
        whole: SequenceModel = plain()
        strategy = TensorParallel(whole, adam, cross_entropy)
        shapes = {name: tuple(tensor.shape) for name, tensor in strategy.full_state().items()}
        expected = {name: tuple(parameter.shape) for name, parameter in whole.named_parameters()}
        return tuple(strategy.model.blocks["1"].lstm["weight_hh_l0"].shape), shapes == expected

    assert list(launch(sizes, ranks=2)) == [((12, 5), True), ((8, 5), True)]
