"""However many ranks there are, an epoch is the same, and no rank makes a step that another does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from course_lib.data import AddingProblem, ShardedBatches

quickly = settings(deadline=None, max_examples=50)
sizes, batch_sizes, rank_counts = st.integers(1, 60), st.integers(1, 20), st.integers(1, 8)


def all_ranks(size: int, batch_size: int, ranks: int, epoch: int = 0, **options) -> list[ShardedBatches]:
    samplers = [ShardedBatches(size, batch_size, rank, ranks, **options) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers


@quickly
@given(sizes, batch_sizes, rank_counts, st.booleans(), st.integers(0, 5))
def test_every_example_comes_exactly_once_per_epoch(size: int, batch_size: int, ranks: int, shuffle: bool, epoch: int):
    samplers = all_ranks(size, batch_size, ranks, epoch, shuffle=shuffle)
    seen = [index for sampler in samplers for part in sampler for index in part]
    assert sorted(seen) == list(range(size))


@quickly
@given(sizes, batch_sizes, rank_counts)
def test_every_rank_makes_the_same_number_of_steps(size: int, batch_size: int, ranks: int):
    samplers = all_ranks(size, batch_size, ranks)
    assert len({len(sampler) for sampler in samplers}) == 1
    assert all(len(list(sampler)) == len(sampler) for sampler in samplers)


@quickly
@given(sizes, batch_sizes, rank_counts, st.integers(0, 5))
def test_the_parts_of_the_ranks_are_the_batch_of_one_process(size: int, batch_size: int, ranks: int, epoch: int):
    (alone,) = all_ranks(size, batch_size, 1, epoch, seed=4)
    samplers = all_ranks(size, batch_size, ranks, epoch, seed=4)
    assert all(sampler.global_batches() == list(alone) for sampler in samplers)
    for batch, parts in zip(alone, zip(*samplers, strict=True), strict=True):
        assert list(parts) == [batch[rank::ranks] for rank in range(ranks)]
        assert sorted(index for part in parts for index in part) == sorted(batch)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@quickly
@given(sizes, batch_sizes)
def test_only_the_last_global_batch_may_be_smaller(size: int, batch_size: int):
    *full, last = ShardedBatches(size, batch_size).global_batches()
    assert all(len(batch) == batch_size for batch in full)
    assert 1 <= len(last) <= batch_size


def test_each_epoch_has_its_own_order_on_which_all_ranks_agree():
    samplers = all_ranks(40, 8, ranks=3)
    orders = []
    for epoch in (0, 1, 2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        first, *others = [sampler.global_batches() for sampler in samplers]
        assert all(other == first for other in others)
        orders.append(first)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    samplers[0].set_epoch(0)
    assert samplers[0].global_batches() == orders[0]


def test_another_seed_is_another_order():
    assert list(ShardedBatches(40, 8, seed=1)) != list(ShardedBatches(40, 8, seed=2))


def test_without_shuffling_the_order_is_the_data_s_own():
    assert list(ShardedBatches(5, 2, shuffle=False)) == [[0, 1], [2, 3], [4]]
    assert list(ShardedBatches(5, 2, rank=1, ranks=2, shuffle=False)) == [[1], [3], []]


def test_the_order_is_the_same_on_every_machine():
    sampler = ShardedBatches(8, 3)
    assert list(sampler) == [[2, 4, 3], [6, 5, 0], [1, 7]]
    sampler.set_epoch(1)
    assert list(sampler) == [[1, 3, 7], [6, 0, 4], [2, 5]]


def test_a_data_loader_takes_it_as_batch_sampler_even_where_a_part_is_empty():
    problem = AddingProblem(5)
    sampler = ShardedBatches(len(problem), 2, rank=1, ranks=2, shuffle=False)
    batches = list(DataLoader(range(len(problem)), batch_sampler=sampler, collate_fn=problem.batch))
    assert [batch.lengths.tolist() for batch in batches] == [[problem.lengths[1]], [problem.lengths[3]], []]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"size": 0}, "size=0: there must be at least one example"),
        ({"batch_size": 0}, "batch_size=0: a global batch holds at least one"),
        ({"ranks": 0}, "ranks=0: data is shared among at least one rank"),
        ({"rank": 2, "ranks": 2}, "rank=2: with ranks=2, give a rank from 0 to 1"),
        ({"rank": -1}, "rank=-1: with ranks=1"),
        ({"seed": -1}, "seed=-1: a seed is 0 or more"),
    ],
)
def test_bad_input_gets_a_sentence(arguments: dict, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        ShardedBatches(**{"size": 10, "batch_size": 4, **arguments})


def test_an_epoch_before_the_first_gets_a_sentence():
    with pytest.raises(ValueError, match="epochs count from 0"):
        ShardedBatches(10, 4).set_epoch(-1)
