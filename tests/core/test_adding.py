"""The adding problem is what its paper says, and the same everywhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.core.adding import AddingProblem, at_last_padded_step
from course_lib.core.batch import pad


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 12), st.integers(0, 12), st.integers(0, 2**70))
def test_two_steps_are_marked_one_in_each_half_and_their_sum_is_wanted(shortest: int, more: int, seed: int):
    problem = AddingProblem(4, (shortest, shortest + more), seed)
    for sequence, answer in (problem[index] for index in range(4)):
        length = len(sequence)
        numbers, markers = sequence.unbind(1)
        first, second = markers.nonzero().flatten().tolist()
        assert shortest <= length <= shortest + more
        assert first < length // 2 <= second
        assert markers.sum() == 2
        assert ((numbers >= 0) & (numbers < 1)).all()
        assert answer.shape == ()
        assert answer == numbers[first] + numbers[second]


def test_every_length_and_place_occurs():
    problem = AddingProblem(400, (4, 6), seed=1)
    places = {(len(problem[i][0]), step.item()) for i in range(400) for step in problem[i][0][:, 1].nonzero()}
    assert places == {(length, step) for length in (4, 5, 6) for step in range(length)}


def test_always_answering_one_has_a_mean_squared_error_of_a_sixth():
    batch = AddingProblem(4000, (2, 6), seed=3).batch(range(4000))
    error = (batch.targets[batch.mask] - 1).square().mean().item()
    assert error == pytest.approx(1 / 6, abs=0.01)


def test_the_numbers_are_the_same_on_every_machine():
    problem = AddingProblem(3)
    assert problem.lengths.tolist() == [15, 19, 6]
    assert problem[0][0][:3, 0].tolist() == pytest.approx([0.01652764, 0.81327024, 0.91275558], abs=1e-7)
    assert [item[0][:, 1].nonzero().flatten().tolist() for item in map(problem.__getitem__, range(3))] == [
        [1, 7],
        [5, 17],
        [1, 4],
    ]
    assert [problem[index][1].item() for index in range(3)] == pytest.approx([1.62912369, 0.98930717, 0.49214238])
    assert AddingProblem(12, seed=7).lengths.tolist() == [15, 17, 9, 20, 8, 5, 12, 7, 16, 17, 15, 7]


def test_a_sequence_depends_only_on_the_seed_and_its_index():
    torch.manual_seed(0)
    forwards, backwards = AddingProblem(5, seed=2), AddingProblem(50, seed=2)
    for index in reversed(range(5)):
        torch.rand(3)
        assert torch.equal(backwards[index][0], forwards[index][0])
    assert not torch.equal(AddingProblem(5, (9, 9), seed=3)[0][0], AddingProblem(5, (9, 9), seed=2)[0][0])


def test_lengths_are_known_without_making_the_sequences():
    problem = AddingProblem(30, (2, 40))
    lengths = problem.lengths
    assert not problem._cache
    assert lengths.dtype == torch.int64
    assert lengths.tolist() == [len(problem[index][0]) for index in range(30)]


def test_a_batch_is_as_long_as_its_longest_sequence_and_counts_only_the_last_valid_step():
    problem = AddingProblem(20)
    chosen = [7, 2, 11]
    batch = problem.batch(chosen)
    assert batch.steps == max(problem.lengths[chosen].tolist())
    assert batch.lengths.tolist() == problem.lengths[chosen].tolist()
    assert batch.count == 3
    for column, index in enumerate(chosen):
        sequence, answer = problem[index]
        last = len(sequence) - 1
        assert torch.equal(batch.inputs[: last + 1, column], sequence)
        assert not batch.inputs[last + 1 :, column].any()
        assert batch.mask[:, column].nonzero().flatten().tolist() == [last]
        assert batch.targets[last, column] == answer
        assert batch.targets[:, column].count_nonzero() == 1


def test_a_rank_with_nothing_to_do_gets_a_batch_of_no_sequences():
    batch = AddingProblem(3).batch([])
    assert batch.inputs.shape == (1, 0, 2)
    assert batch.count == 0
    assert at_last_padded_step(batch).count == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_numbers_come_in_the_type_asked_for(dtype: torch.dtype):
    batch = AddingProblem(3, dtype=dtype).batch([0, 1])
    assert batch.inputs.dtype == batch.targets.dtype == dtype


def test_the_popular_mistake_reads_every_sequence_at_the_last_row():
    right = AddingProblem(20).batch([0, 1, 2])
    wrong = at_last_padded_step(right)
    assert torch.equal(wrong.inputs, right.inputs)
    assert torch.equal(wrong.lengths, right.lengths)
    assert wrong.mask.nonzero().tolist() == [[right.steps - 1, sequence] for sequence in range(3)]
    assert torch.equal(wrong.targets[-1], right.targets[right.lengths - 1, torch.arange(3)])
    assert wrong.targets.count_nonzero() == 3


def test_the_popular_mistake_needs_one_counted_step_per_sequence():
    with pytest.raises(ValueError, match="give a batch of the adding problem"):
        at_last_padded_step(pad([torch.ones(3, 2)], [torch.ones(3)]))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"size": 0}, "size=0: a dataset needs at least one sequence"),
        ({"size": 3, "lengths": (1, 5)}, "the shortest length is at least 2"),
        ({"size": 3, "lengths": (9, 3)}, "give the shortest length first"),
        ({"size": 3, "seed": -1}, "seed=-1: a seed is 0 or more"),
        ({"size": 3, "dtype": torch.int64}, "give a floating-point type"),
    ],
)
def test_bad_input_gets_a_sentence(arguments: dict, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        AddingProblem(**arguments)


@pytest.mark.parametrize("index", [3, -1])
def test_a_sequence_that_does_not_exist_is_an_error(index: int):
    with pytest.raises(IndexError, match="give an index from 0 to 2"):
        AddingProblem(3)[index]
