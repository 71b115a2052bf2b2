"""Padding x data parallelism x accumulation gives the same answer as one process."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from course_lib import launch
from course_lib.core.batch import Batch, pad
from course_lib.core.model import SequenceModel, cross_entropy, lstm_model
from course_lib.core.proof import prove_all, same_as_one_process
from course_lib.core.text import Corpus, Streams
from course_lib.data_parallel.ddp import Accumulation
from course_lib.launcher.hangs.call_log import CallLog

adam = partial(torch.optim.Adam, lr=0.01)
VOCABULARY, UPDATES = 11, 5
UNIFORM, UNEVEN = [4] * 11, [1, 14, 2, 2, 9, 1, 3, 12, 1, 1, 2]  # 11 sequences: nothing divides them


def plain() -> SequenceModel:
    return lstm_model(vocabulary=VOCABULARY, hidden=5, layers=2)


def frozen() -> SequenceModel:
    model = plain()
    model.blocks["0"].requires_grad_(False).table.weight.data.fill_(0.1)  # frozen weights are not averaged either
    model.blocks["1"].lstm.bias_ih_l0.requires_grad_(False)
    return model


def tied() -> SequenceModel:
    model = plain()
    model.blocks["3"].linear.weight = model.blocks["0"].table.weight
    return model


def frozen_and_tied() -> SequenceModel:
    model = tied()
    model.blocks["1"].lstm.bias_ih_l0.requires_grad_(False)
    model.blocks["2"].lstm.weight_hh_l0.requires_grad_(False)
    return model


def text_batches(lengths: list[int]) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)

    def tokens(length: int) -> torch.Tensor:
        return torch.randint(0, VOCABULARY, (length,), generator=generator)

    return [pad([tokens(n) for n in lengths], [tokens(n) for n in lengths]) for _ in range(UPDATES)]


prove = partial(same_as_one_process, optimizer=adam, loss=cross_entropy)


# Two and three ranks, each model and each spread of lengths; the whole product takes minutes.
QUICK = [(2, UNIFORM, plain), (3, UNEVEN, frozen_and_tied)]
PRODUCT = [
    pytest.param(
        *each,
        marks=() if each in QUICK else pytest.mark.slow,
        id=f"{each[0]}-{'uniform' if each[1] is UNIFORM else 'uneven'}-{each[2].__name__}",
    )
    for each in itertools.product((1, 2, 3, 4), (UNIFORM, UNEVEN), (plain, frozen_and_tied))
]


@pytest.mark.parametrize(("ranks", "lengths", "model"), PRODUCT)
def test_the_full_product_is_the_same_as_one_process(ranks, lengths, model):
    variations = [{"micro_batches": k} for k in (1, 2, 3, 5)]
    batches = text_batches(lengths)
    proofs = prove_all(
        variations, Accumulation, ranks=ranks, model=model, batches=batches, optimizer=adam, loss=cross_entropy
    )
    for variation, proof in zip(variations, proofs, strict=True):
        assert proof, f"{variation}: {proof}"
        assert len(proof.steps) == ranks * UPDATES


def test_frozen_weights_have_no_gradient_and_tied_ones_have_one():
    def names(model):
        strategy = Accumulation(model(), adam, cross_entropy, micro_batches=2)
        strategy.step(text_batches(UNEVEN)[0])
        return len(strategy.full_gradients()), len(strategy.full_state())

    whole = len(list(plain().parameters()))
    assert launch(names, frozen, ranks=1)[0] == (whole - 2, whole)
    assert launch(names, tied, ranks=1)[0] == (whole - 1, whole - 1)


def test_the_gradient_is_clipped_once_by_the_norm_of_the_whole_batch():
    proof = prove(Accumulation, ranks=2, micro_batches=3, model=plain, batches=text_batches(UNEVEN), clip=0.05)
    assert proof, proof


def test_each_micro_batch_carries_the_state_of_its_own_streams():
    corpus = Corpus.from_text("every micro-batch has its own streams, from window to window. " * 12)
    model = partial(lstm_model, vocabulary=len(corpus.vocabulary), hidden=5, layers=1)
    windows = list(Streams(corpus.tokens, streams=7, window=6))[:4]
    proof = prove(Accumulation, ranks=2, micro_batches=3, model=model, batches=windows, carry_state=True)
    assert proof, proof


def test_gradients_are_sent_once_however_many_micro_batches_there_are():
    def calls_of_an_update(micro_batches):
        strategy = Accumulation(plain(), adam, cross_entropy, micro_batches=micro_batches)
        (batch, *_) = text_batches(UNEVEN)
        for _ in range(2):  # after the first backward pass the buckets are built again, in the order of arrival
            strategy.step(strategy.share(batch))
        before = len(CallLog().calls())
        strategy.step(strategy.share(batch))
        return [(call.op, call.shape) for call in CallLog().calls()[before:]]

    parameters = sum(parameter.numel() for parameter in plain().parameters())
    expected = [("all_reduce", ()), ("all_reduce", (parameters,)), ("all_reduce", ())]
    for micro_batches in (1, 4):
        assert [(op, tuple(shape)) for op, shape in launch(calls_of_an_update, micro_batches, ranks=2)[0]] == expected


def test_less_than_one_micro_batch_gets_a_sentence():
    with pytest.raises(ValueError, match="micro_batches=0: a share is cut into at least one"):
        Accumulation(plain(), adam, cross_entropy, micro_batches=0)
