"""What computation hides of communication: one rule, for sums over replicas and for sharded weights."""

from __future__ import annotations

import pytest

from course_lib.planning.block_times import BlockSeconds
from course_lib.planning.plan import sent_by
from course_lib.planning.sharding import fully_sharded_seconds

BLOCK = BlockSeconds(1.0, 2.0, 1.0, 1.0)


def test_a_message_waits_for_what_it_sends_and_for_the_message_before_it():
    assert sent_by([(1.0, 2.0), (2.0, 2.0)]) == 5.0
    assert sent_by([(1.0, 0.5), (2.0, 0.5)]) == 2.5
    assert sent_by([]) == 0.0


def test_quick_gathering_hides_but_for_the_first_and_the_last():
    done = fully_sharded_seconds([BLOCK] * 3, gather=[0.5] * 3, scatter=[0.5] * 3, micro_batches=1)
    assert done == pytest.approx(0.5 + 3 * 1 + 3 * 2 + 0.5)


def test_slow_gathering_is_all_there_is():
    done = fully_sharded_seconds([BLOCK] * 3, gather=[10.0] * 3, scatter=[10.0] * 3, micro_batches=1)
    # Three gathered on the way there and two on the way back, the last block stays; three sums. Only the first block's
    # gathering is followed by nothing to do but compute, at both ends.
    assert 80 <= done <= 80 + 3 * 3


def test_without_gathering_ahead_everything_comes_one_after_another():
    done = fully_sharded_seconds([BLOCK] * 3, gather=[0.5] * 3, scatter=[0.25] * 3, ahead=False, micro_batches=1)
    assert done == pytest.approx(3 * 3 + 5 * 0.5 + 3 * 0.25)


def test_micro_batches_gather_each_time_and_send_gradients_once():
    one, three = (
        fully_sharded_seconds([BLOCK] * 2, gather=[0.5] * 2, scatter=[0.25] * 2, ahead=False, micro_batches=count)
        for count in (1, 3)
    )
    assert three - one == pytest.approx(2 * (2 * 3 + 3 * 0.5))
