"""A batch can be cut in any way without losing, repeating or mixing anything."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.core.batch import Batch, copied_ahead, pad

quickly = settings(deadline=None, max_examples=50)


def numbered(lengths: list[int], features: int = 0, spare: int = 0) -> Batch:
    """A batch in which every valid cell holds a number of its own, none of them 0, and about half the steps count."""
    steps, sequences = max([1, *lengths]) + spare, len(lengths)
    cells = torch.arange(1, steps * sequences + 1).view(steps, sequences)
    valid = torch.arange(steps)[:, None] < torch.tensor(lengths, dtype=torch.int64)
    inputs = cells * valid
    if features:
        inputs = torch.stack([inputs * (feature + 1.0) for feature in range(features)], dim=2)
    return Batch(inputs, -cells * valid, torch.tensor(lengths, dtype=torch.int64), valid & (cells % 3 != 0))


@st.composite
def batches(draw) -> Batch:
    lengths = draw(st.lists(st.integers(0, 9), max_size=7))
    return numbered(lengths, draw(st.sampled_from([0, 1, 3])), draw(st.integers(0, 3)))


def same(left: Batch, right: Batch) -> bool:
    fields = ("inputs", "targets", "lengths", "mask")
    return all(torch.equal(getattr(left, name), getattr(right, name)) for name in fields)


def glued(parts: list[Batch]) -> Batch:
    """Groups of sequences, side by side again."""
    inputs, targets, mask = (torch.cat([getattr(p, name) for p in parts], 1) for name in ("inputs", "targets", "mask"))
    return Batch(inputs, targets, torch.cat([part.lengths for part in parts]), mask)


def test_pad_writes_each_sequence_down_a_column():
    batch = pad([torch.tensor([1, 2, 3]), torch.tensor([4])], [torch.tensor([5, 6, 7]), torch.tensor([8])])
    assert batch.inputs.tolist() == [[1, 4], [2, 0], [3, 0]]
    assert batch.targets.tolist() == [[5, 8], [6, 0], [7, 0]]
    assert batch.mask.tolist() == [[True, True], [True, False], [True, False]]
    assert batch.lengths.tolist() == [3, 1]
    assert (batch.steps, batch.sequences, batch.count) == (3, 2, 4)
    assert batch.padding == pytest.approx(2 / 6)


def test_steps_may_be_valid_and_not_count():
    masks = [torch.tensor([False, True]), torch.tensor([True])]
    batch = pad([torch.ones(2, 4), torch.ones(1, 4)], [torch.ones(2), torch.ones(1)], masks)
    assert batch.inputs.shape == (2, 2, 4)
    assert batch.count == 2
    assert batch.valid.tolist() == [[True, True], [True, False]]
    assert batch.mask.tolist() == [[False, True], [True, False]]


@quickly
@given(batches(), st.integers(1, 9))
def test_micro_batches_side_by_side_are_the_batch(batch: Batch, n: int):
    parts = batch.micro_batches(n)
    sizes = [part.sequences for part in parts]
    assert len(parts) == n
    assert max(sizes) - min(sizes) <= 1
    assert sum(part.count for part in parts) == batch.count
    assert same(glued(parts), batch)
    assert all(part.inputs.is_contiguous() and part.targets.is_contiguous() for part in parts)


@quickly
@given(batches(), st.integers(1, 9))
def test_shards_dealt_back_in_turn_are_the_batch(batch: Batch, ranks: int):
    shards = [batch.shard(rank, ranks) for rank in range(ranks)]
    owners = [(rank, place) for place in range(batch.sequences) for rank in range(ranks)][: batch.sequences]
    assert sum(shard.count for shard in shards) == batch.count
    assert sum(shard.sequences for shard in shards) == batch.sequences
    for sequence, (rank, place) in enumerate(owners):
        assert same(shards[rank].rows([place]), batch.rows([sequence]))


@quickly
@given(batches(), st.data())
def test_chunks_one_after_another_are_the_batch(batch: Batch, data: st.DataObject):
    n = data.draw(st.integers(1, batch.steps))
    chunks = batch.chunks(n)
    sizes = [chunk.steps for chunk in chunks]
    assert len(chunks) == n
    assert max(sizes) - min(sizes) <= 1
    assert sum(chunk.count for chunk in chunks) == batch.count
    inputs, targets, mask = (torch.cat([getattr(c, name) for c in chunks]) for name in ("inputs", "targets", "mask"))
    assert same(Batch(inputs, targets, sum(chunk.lengths for chunk in chunks), mask), batch)
    assert torch.equal(torch.cat([chunk.valid for chunk in chunks]), batch.valid)
    assert all(chunk.inputs.is_contiguous() for chunk in chunks)


@quickly
@given(batches(), st.randoms(use_true_random=False))
def test_rows_in_another_order_come_back_in_the_first(batch: Batch, random):
    order = random.sample(range(batch.sequences), batch.sequences)
    back = [order.index(sequence) for sequence in range(batch.sequences)]
    shuffled = batch.rows(order)
    assert shuffled.steps == batch.steps
    assert shuffled.lengths.tolist() == [batch.lengths[sequence].item() for sequence in order]
    assert same(shuffled.rows(torch.tensor(back, dtype=torch.int64)), batch)


@quickly
@given(batches())
def test_trimming_removes_only_padding(batch: Batch):
    trimmed = batch.trimmed()
    assert trimmed.steps == max([1, *batch.lengths.tolist()])
    assert trimmed.count == batch.count
    assert torch.equal(trimmed.lengths, batch.lengths)
    assert torch.equal(trimmed.inputs, batch.inputs[: trimmed.steps])
    assert not batch.valid[trimmed.steps :].any()


@pytest.mark.parametrize("features", [0, 2])
def test_a_batch_of_no_sequences_can_be_cut_like_any_other(features: int):
    empty = numbered([4, 2], features).rows([])
    assert (empty.steps, empty.sequences, empty.count, empty.padding) == (4, 0, 0, 0.0)
    assert empty.valid.shape == (4, 0)
    assert same(empty.to("cpu"), empty)
    assert same(empty.rows([]), empty)
    assert same(empty.shard(1, 2), empty)
    assert [part.sequences for part in empty.micro_batches(3)] == [0, 0, 0]
    assert [chunk.steps for chunk in empty.chunks(3)] == [2, 1, 1]
    assert empty.between(1, 3).steps == 2
    assert empty.trimmed().steps == 1


def test_lengths_stay_on_the_cpu_when_a_batch_moves():
    moved = numbered([3, 1]).to("meta", non_blocking=True)
    assert {tensor.device.type for tensor in (moved.inputs, moved.targets, moved.mask)} == {"meta"}
    assert moved.lengths.tolist() == [3, 1]


def test_a_sequence_that_has_ended_has_no_length_in_later_chunks():
    first, second = numbered([4, 1]).chunks(2)
    assert first.lengths.tolist() == [2, 1]
    assert second.lengths.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda b: Batch(b.inputs[0], b.targets, b.lengths, b.mask), r"inputs have shape \(2,\): give \(steps"),
        (lambda b: Batch(b.inputs.float(), b.targets, b.lengths, b.mask), "give int64 tokens, or add a dimension"),
        (lambda b: Batch(b.inputs[:0], b.targets[:0], b.lengths, b.mask[:0]), "inputs have no steps"),
        (lambda b: Batch(b.inputs, b.targets[:2], b.lengths, b.mask), r"targets has shape \(2, 2\): give one value"),
        (lambda b: Batch(b.inputs, b.targets, b.lengths, b.mask.T), r"mask has shape \(2, 3\): give one value"),
        (lambda b: Batch(b.inputs, b.targets, b.lengths, b.mask.int()), r"give torch.bool"),
        (lambda b: Batch(b.inputs, b.targets, b.lengths[:1], b.mask), "one for each of the 2 sequences"),
        (lambda b: Batch(b.inputs, b.targets, b.lengths.int(), b.mask), "give int64 on the CPU"),
        (lambda b: Batch(b.inputs, b.targets, b.lengths.to("meta"), b.mask), "give int64 on the CPU"),
        (lambda b: Batch(b.inputs, b.targets, b.lengths + 1, b.mask), "each from 0 to 3"),
        (lambda b: b.chunks(0), "cut into 1 to 3 chunks"),
        (lambda b: b.chunks(4), "cut into 1 to 3 chunks"),
        (lambda b: b.between(2, 2), "0 <= start < stop <= 3"),
        (lambda b: b.between(1, 4), "0 <= start < stop <= 3"),
        (lambda b: b.micro_batches(0), "at least one micro-batch"),
        (lambda b: b.shard(2, 2), "give a rank from 0 to 1"),
        (lambda b: b.shard(0, 0), "at least one rank"),
        (lambda b: b.rows(b.lengths > 1), "by index, not by torch.bool"),
        (lambda b: pad([], []), "no sequence to pad"),
        (lambda b: pad([torch.ones(0)], [torch.ones(0)]), "sequence 0 has no steps"),
        (lambda b: pad([torch.ones(2)], [torch.ones(3)]), "targets do not match the sequences"),
        (lambda b: pad([torch.ones(2)], [torch.ones(2)], []), "masks do not match the sequences"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(make, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        make(numbered([3, 1]))


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_every_tensor_comes_once_and_in_order(device, count):
    tensors = [torch.full((1000,), float(number)) for number in range(count)]
    tensors = [each.pin_memory() for each in tensors] if device == "cuda" else tensors
    came = [each.square().sum().item() for each in copied_ahead(tensors, device)]
    assert came == [1000.0 * number**2 for number in range(count)]
