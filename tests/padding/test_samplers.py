"""However many ranks there are, an epoch is the same, and no rank makes a step that another does not."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from course_lib.core.adding import AddingProblem
from course_lib.core.samplers import ShardedBatches
from course_lib.padding.buckets import BucketedBatches, equal_cuts, load_of

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
@given(sizes, batch_sizes, rank_counts, st.integers(0, 5))
def test_the_parts_of_the_ranks_are_the_batch_of_one_process(size: int, batch_size: int, ranks: int, epoch: int):
    (alone,) = all_ranks(size, batch_size, 1, epoch, seed=4)
    samplers = all_ranks(size, batch_size, ranks, epoch, seed=4)
    assert all(sampler.global_batches() == list(alone) for sampler in samplers)
    for batch, parts in zip(alone, zip(*samplers, strict=True), strict=True):
        assert list(parts) == [batch[rank::ranks] for rank in range(ranks)]
        assert sorted(index for part in parts for index in part) == sorted(batch)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


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


def test_without_shuffling_the_order_is_the_data_s_own():
    assert list(ShardedBatches(5, 2, shuffle=False)) == [[0, 1], [2, 3], [4]]
    assert list(ShardedBatches(5, 2, rank=1, ranks=2, shuffle=False)) == [[1], [3], []]


def test_the_order_is_the_same_on_every_machine():
    sampler = ShardedBatches(8, 3)
    assert list(sampler) == [[2, 4, 3], [6, 5, 0], [1, 7]] != list(ShardedBatches(8, 3, seed=1))
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
        ({"ranks": 0}, "ranks=0: data needs at least one rank"),
        ({"rank": 2, "ranks": 2}, "rank=2: with ranks=2, give a rank from 0 to 1"),
        ({"rank": -1}, "rank=-1: with ranks=1"),
        ({"seed": -1}, "seed=-1: a seed is 0 or more"),
    ],
)
def test_bad_input_gets_a_sentence(arguments: dict, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        ShardedBatches(**{"size": 10, "batch_size": 4, **arguments})


lengths_of_all = st.lists(st.integers(1, 60), min_size=1, max_size=80)


def bucketed(lengths, tokens: int, ranks: int, epoch: int = 0, **options) -> list[BucketedBatches]:
    samplers = [BucketedBatches(lengths, tokens, rank, ranks, **options) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers


@quickly
@given(lengths_of_all, st.integers(1, 300), st.integers(1, 16), st.integers(1, 9), st.booleans(), st.integers(0, 3))
def test_bucketed_batches_keep_every_promise(lengths, tokens, ranks, pool, shuffle, epoch):
    samplers = bucketed(lengths, tokens, ranks, epoch, pool=pool, shuffle=shuffle)
    parts = [list(sampler) for sampler in samplers]
    assert sorted(index for part in parts for batch in part for index in batch) == list(range(len(lengths)))
    assert {len(part) for part in parts} == {len(sampler) for sampler in samplers} == {len(parts[0])}
    (alone,) = bucketed(lengths, tokens, 1, epoch, pool=pool, shuffle=shuffle)
    for number, batch in enumerate(alone):
        assert sorted(index for part in parts for index in part[number]) == sorted(batch)
        assert batch
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= tokens


@quickly
@given(lengths_of_all, st.integers(1, 300), st.integers(1, 16))
def test_no_rank_has_more_than_one_sequence_and_the_batchs_spread_more_than_another(lengths, tokens, ranks):
    for batch in bucketed(lengths, tokens, 1)[0]:
        parts = [[lengths[index] for index in batch[rank::ranks]] for rank in range(ranks)]
        longest, shortest = lengths[batch[0]], lengths[batch[-1]]
        assert longest == max(lengths[index] for index in batch)
        counts = [len(part) for part in parts]
        assert max(counts) - min(counts) <= 1
        full = [sum(part) for part in parts if len(part) == max(counts)]
        assert max(full) - min(full) <= longest - shortest


@quickly
@given(lengths_of_all, st.integers(1, 300))
def test_cuts_are_as_few_as_the_limit_allows_and_then_as_equal_as_possible(lengths, cells):
    lengths = sorted(lengths, reverse=True)
    cuts = equal_cuts(list(range(len(lengths))), lengths, cells)
    fewest, least = fewest_and_most_equal(tuple(lengths), cells)
    assert len(cuts) == fewest
    assert max((len(cut) * lengths[cut[0]] for cut in cuts if len(cut) > 1), default=0) <= least


def fewest_and_most_equal(lengths: tuple[int, ...], cells: int) -> tuple[int, int]:
    """By dynamic programming over where the last batch starts: how few batches, and then how small the largest is."""
    best = [(0, 0)]
    for stop in range(1, len(lengths) + 1):
        options = []
        for start in range(stop):
            size = (stop - start) * lengths[start]
            if size <= cells or stop - start == 1:
                count, largest = best[start]
                options.append((count + 1, max(largest, size)))
        best.append(min(options))
    return best[-1]


def test_fewer_sequences_than_ranks_leave_ranks_empty_and_not_short_of_a_step():
    samplers = bucketed([5, 9, 7], tokens=100, ranks=16)
    assert [list(sampler) for sampler in samplers] == [[[1]], [[2]], [[0]], *[[[]] for _ in range(13)]]


def test_one_enormous_sequence_costs_only_itself():
    lengths = [10] * 100 + [5_000]
    (sampler,) = bucketed(lengths, tokens=500, ranks=1)
    assert sorted(map(len, sampler)) == [1, 50, 50]
    assert load_of(sampler, lengths).padding == 0


def test_each_epoch_of_buckets_is_shuffled_and_has_other_batches():
    lengths = numpy.random.default_rng(0).integers(1, 50, 400)
    in_one_pool = BucketedBatches(lengths, tokens=400, pool=100)
    longest = [max(lengths[index] for index in batch) for batch in in_one_pool]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))
    sampler = BucketedBatches(lengths, tokens=400, pool=5)
    first = [frozenset(batch) for batch in sampler]
    sampler.set_epoch(1)
    second = {frozenset(batch) for batch in sampler}
    assert len(second & set(first)) < len(first) / 10
    sampler.set_epoch(0)
    assert [frozenset(batch) for batch in sampler] == first


def test_larger_pools_leave_less_padding_and_mix_less():
    lengths = log_normal_lengths()
    small, middle, large = (load_of(BucketedBatches(lengths, 1_000, pool=pool), lengths) for pool in (1, 10, 100))
    assert small.padding > 2 * middle.padding > 4 * large.padding
    assert small.mixing > 2 * middle.mixing > 4 * large.mixing


def test_buckets_are_balanced_over_ranks_where_random_batches_are_not():
    lengths = log_normal_lengths()
    bucket = load_of(BucketedBatches(lengths, tokens=8_000), lengths, ranks=4)
    random = load_of(ShardedBatches(len(lengths), 300), lengths, ranks=4)
    assert (bucket.padding < 0.06, bucket.balance < 1.05) == (True, True)
    assert (random.padding > 0.5, random.balance > 1.1) == (True, True)
    assert bucket.tokens == random.tokens == lengths.sum()


def log_normal_lengths() -> numpy.ndarray:
    return numpy.random.default_rng(0).lognormal(3, 0.7, 20_000).clip(2, 400).astype(int)


def test_load_counts_cells_and_the_most_loaded_rank():
    load = load_of([[0, 1], [2, 3]], [4, 2, 6, 6], ranks=2)
    assert (load.updates, load.tokens, load.cells, load.balance) == (2, 18, 18, 2 * (4 + 6) / 18)
    assert load_of([[0, 1]], [4, 2]).padding == 0.25


def test_mixing_is_one_for_random_batches_and_zero_where_all_are_as_long():
    assert load_of([[0, 1], [2, 3]], [4, 9, 4, 9]).mixing == 1
    assert load_of([[0, 2], [1, 3]], [4, 9, 4, 9]).mixing == 0
    assert load_of([[0, 1]], [4, 4]).mixing == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"lengths": []}, "size=0: there must be at least one example"),
        ({"lengths": [3, 0]}, "shortest=0: a sequence has at least one step"),
        ({"tokens": 0}, "tokens=0: a global batch holds at least one token"),
        ({"pool": 0}, "pool=0: at least one batch is sorted at a time"),
        ({"rank": 2, "ranks": 2}, "rank=2: with ranks=2"),
    ],
)
def test_bad_buckets_get_a_sentence(arguments: dict, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        BucketedBatches(**{"lengths": [1, 2], "tokens": 4, **arguments})
