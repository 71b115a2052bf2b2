"""All-reduces as lists of messages: in every way, each rank ends with everybody's numbers, at the price foretold."""

from __future__ import annotations

from math import log2

import pytest

from course_lib.messages.all_reduce import WAYS, AllReduce, doubling, ring, through_root

ALL_REDUCES = [make(ranks) for ranks in range(2, 9) for make in (ring, through_root)] + [doubling(n) for n in (2, 4, 8)]


def sums(way: AllReduce) -> list[list[int]]:
    """What the messages do to real numbers: rank r begins with 10 ** r in each piece."""
    held = [[10**rank] * way.pieces for rank in range(way.ranks)]
    for messages in way.rounds:
        before = [list(row) for row in held]
        for one in messages:
            own = before[one.target][one.piece] if one.adds else 0
            held[one.target][one.piece] = own + before[one.source][one.piece]
    return held


@pytest.mark.parametrize("way", ALL_REDUCES, ids=lambda way: f"{way.name}-{way.ranks}")
def test_every_rank_ends_with_the_sum_and_nobody_is_counted_twice(way):
    total = sum(10**rank for rank in range(way.ranks))
    assert sums(way) == [[total] * way.pieces] * way.ranks
    assert all(len(held) == way.ranks for row in way.held_after(len(way.rounds)) for held in row)


@pytest.mark.parametrize("way", ALL_REDUCES, ids=lambda way: f"{way.name}-{way.ranks}")
def test_before_the_last_round_somebody_lacks_something(way):
    assert any(len(held) < way.ranks for row in way.held_after(len(way.rounds) - 1) for held in row)


@pytest.mark.parametrize("ranks", range(2, 9))
def test_the_bytes_are_those_of_the_formulas(ranks):
    assert ring(ranks).sent_after(2 * ranks, 1.0) == pytest.approx([2 * (ranks - 1) / ranks] * ranks)
    assert ring(ranks).in_turn(size=1.0) == pytest.approx(2 * (ranks - 1) / ranks)
    assert through_root(ranks).in_turn(size=3.0) == 2 * (ranks - 1) * 3.0
    assert through_root(ranks).sent_after(2 * ranks, 1.0) == [ranks - 1, *[1] * (ranks - 1)]
    if log2(ranks).is_integer():
        assert doubling(ranks).in_turn() == log2(ranks)


def test_in_a_ring_everybody_sends_one_piece_to_the_right_in_every_round():
    for messages in ring(5).rounds:
        assert sorted((one.source, one.target) for one in messages) == [(rank, (rank + 1) % 5) for rank in range(5)]


def test_what_cannot_be_is_refused_in_a_sentence():
    for make in WAYS.values():
        with pytest.raises(ValueError, match="ranks=1: an all-reduce needs at least two"):
            make(1)
    with pytest.raises(ValueError, match="needs 2, 4, 8"):
        doubling(6)
