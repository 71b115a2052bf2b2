"""A model can be cut anywhere, between blocks and in time, and still be the same model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from course_lib.core.adding import AddingProblem
from course_lib.core.batch import Batch
from course_lib.core.memory import size_of
from course_lib.core.model import cross_entropy, detach_states, lstm_model, squared_error
from course_lib.core.text import Corpus

TOLERANCE = {"rtol": 0.0, "atol": 1e-10}
quick = settings(deadline=None, max_examples=25)


def adding_batch(sequences: int = 5, lengths: tuple[int, int] = (3, 9), seed: int = 0) -> Batch:
    return AddingProblem(sequences, lengths, seed=seed, dtype=torch.float64).batch(range(sequences))


def small_model(layers: int = 2, seed: int = 0):
    torch.manual_seed(seed)
    return lstm_model(features=2, hidden=4, layers=layers, outputs=1).double()


def gradients(model, total) -> list[torch.Tensor]:
    return torch.autograd.grad(total, list(model.parameters()))


def padded(batch: Batch, extra: int) -> Batch:
    """The same batch with `extra` steps of rubbish after the end."""

    def longer(tensor: torch.Tensor, fill: float) -> torch.Tensor:
        return torch.cat([tensor, torch.full((extra, *tensor.shape[1:]), fill, dtype=tensor.dtype)])

    mask = longer(batch.mask.long(), 0).bool()
    return Batch(longer(batch.inputs, 9.9), longer(batch.targets, 7.7), batch.lengths, mask)


@quick
@given(extra=st.integers(1, 6), sequences=st.integers(1, 6), seed=st.integers(0, 5))
def test_padding_never_changes_loss_or_gradient(extra, sequences, seed):
    model, batch = small_model(seed=seed), adding_batch(sequences, seed=seed)
    results = []
    for each in (batch, padded(batch, extra)):
        total, count = squared_error(model(each.inputs)[0], each)
        results.append((total, count, gradients(model, total)))
    (total, count, grads), (padded_total, padded_count, padded_grads) = results
    assert count == padded_count == sequences
    torch.testing.assert_close(total, padded_total, **TOLERANCE)
    torch.testing.assert_close(grads, padded_grads, **TOLERANCE)


@quick
@given(sequences=st.integers(1, 6), seed=st.integers(0, 5))
def test_packing_equals_masking(sequences, seed):
    model, batch = small_model(layers=1, seed=seed), adding_batch(sequences, seed=seed)
    way_in, recurrent, way_out = [block for _, block in model.numbered()]
    masked = squared_error(model(batch.inputs)[0], batch)[0]
    packed = pack_padded_sequence(way_in(batch.inputs)[0], batch.lengths, enforce_sorted=False)
    hidden, _ = pad_packed_sequence(recurrent.lstm(packed)[0], total_length=batch.steps)
    packed = squared_error(way_out(hidden)[0], batch)[0]
    torch.testing.assert_close(masked, packed, **TOLERANCE)
    torch.testing.assert_close(gradients(model, masked), gradients(model, packed), **TOLERANCE)


@quick
@given(data=st.data(), layers=st.integers(1, 3), chunks=st.integers(1, 9), seed=st.integers(0, 5))
def test_cut_at_any_block_and_any_chunk_of_time_it_is_the_same_model(data, layers, chunks, seed):
    model, batch = small_model(layers, seed), adding_batch(4, (9, 9), seed)
    whole_outputs, whole_states = model(batch.inputs)
    whole = squared_error(whole_outputs, batch)[0]

    cut = data.draw(st.integers(1, len(model) - 1))
    parts = [model.part(0, cut), model.part(cut, len(model))]
    total, states, outputs = 0.0, [{}, {}], []
    for chunk in batch.chunks(chunks):
        values = chunk.inputs
        for place, part in enumerate(parts):
            values, states[place] = part(values, states[place])
        outputs.append(values)
        total = total + squared_error(values, chunk)[0]

    torch.testing.assert_close(torch.cat(outputs), whole_outputs, **TOLERANCE)
    torch.testing.assert_close({**states[0], **states[1]}, whole_states, **TOLERANCE)
    torch.testing.assert_close(gradients(model, total), gradients(model, whole), **TOLERANCE)


def test_detached_states_stop_the_gradient():
    model, batch = small_model(), adding_batch(4, (8, 8))
    first, second = batch.chunks(2)
    states = detach_states(model(first.inputs)[1])
    truncated = gradients(model, squared_error(model(second.inputs, states)[0], second)[0])
    full = gradients(model, squared_error(model(batch.inputs)[0], batch)[0])
    assert max((a - b).abs().max() for a, b in zip(truncated, full, strict=True)) > 1e-6


def test_a_part_has_the_names_of_the_whole():
    model = small_model(layers=3)
    names = [name for start, stop in ((0, 2), (2, 3), (3, 5)) for name in model.part(start, stop).state_dict()]
    assert names == list(model.state_dict())


def test_an_empty_share_gives_zero_and_gradients_of_zero():
    model, batch = small_model(), adding_batch().rows([])
    total, count = squared_error(model(batch.inputs)[0], batch)
    assert (total.item(), count.item()) == (0.0, 0)
    assert all((gradient == 0).all() for gradient in gradients(model, total))


def test_cross_entropy_counts_every_valid_token_once():
    corpus = Corpus.from_text("one two three four. five six. seven eight nine ten eleven.")
    model = lstm_model(vocabulary=len(corpus.vocabulary), hidden=4, layers=1).double()
    batch = corpus.batch([0, 1, 2])
    total, count = cross_entropy(model(batch.inputs)[0], batch)
    alone = [cross_entropy(model(each.inputs)[0], each) for each in (corpus.batch([i]) for i in range(3))]
    assert count.item() == int(corpus.lengths.sum())
    torch.testing.assert_close(total, sum(part for part, _ in alone), **TOLERANCE)


def test_the_forget_gate_starts_open():
    lstm = small_model(layers=1).blocks["1"].lstm
    assert (lstm.bias_ih_l0 + lstm.bias_hh_l0)[4:8].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "give features= for sequences of numbers, or vocabulary= for tokens"),
        ({"features": 2, "vocabulary": 9}, "but not both"),
        ({"features": 2, "layers": 0}, "needs at least one of each"),
    ],
)
def test_bad_models_get_a_sentence(arguments, says):
    with pytest.raises(ValueError, match=says):
        lstm_model(**arguments)


def test_a_part_without_blocks_is_refused():
    with pytest.raises(ValueError, match="there is no block there; this model has 4"):
        small_model().part(7, 9)


def test_parameters_are_as_many_as_the_formula_says():
    for model in (small_model(3), lstm_model(vocabulary=11, hidden=5, layers=2)):
        for _, block in model.numbered():
            assert size_of(block).parameters == sum(parameter.numel() for parameter in block.parameters())
