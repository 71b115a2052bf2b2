"""Block times: what was measured is found again, and nothing is assumed that was not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.core.model import Embed, Project, Recurrent
from course_lib.one_device.block_times import BlockSeconds, Surface, h200_block_times, read_block_times
from tests.benchmarks.calibration import Sizes, calibrate, save

TINY = Sizes(hidden=(4, 16), sequences=(1, 4), steps=(1, 4), words=(8, 32), cells=(2, 8), parameters=(100, 1000))


def seconds(value: float) -> BlockSeconds:
    return BlockSeconds(value, 2 * value, value, value)


SURFACE = Surface((4.0, 16.0), (8.0, 32.0), ((seconds(1.0), seconds(2.0)), (seconds(3.0), seconds(7.0))))


def test_what_was_measured_is_found_again():
    assert SURFACE.at(4, 8) == seconds(1.0)
    assert SURFACE.at(16, 32) == seconds(7.0)


def test_between_two_sizes_a_time_lies_on_a_straight_line():
    assert SURFACE.at(10, 8).forward == pytest.approx(2.0)
    assert SURFACE.at(4, 20).forward == pytest.approx(1.5)
    assert SURFACE.at(10, 20).forward == pytest.approx((1 + 2 + 3 + 7) / 4)


def test_a_larger_piece_runs_at_the_speed_of_the_largest_and_a_smaller_one_takes_as_long_as_the_smallest():
    assert SURFACE.at(32, 64).forward == pytest.approx(4 * 7.0)
    assert SURFACE.at(1, 1) == seconds(1.0)


@given(st.floats(0.5, 64), st.floats(1, 128))
def test_no_speed_is_assumed_that_was_not_measured(row, column):
    measured = [(4, 8, 1.0), (4, 32, 2.0), (16, 8, 3.0), (16, 32, 7.0)]
    fastest = max(rows * columns / spent for rows, columns, spent in measured)
    assert row * column / SURFACE.at(row, column).forward <= fastest * (1 + 1e-9)


def test_a_table_is_measured_here_saved_and_read_again(tmp_path):
    times = calibrate(TINY, at_least=0.001)
    save(times, tmp_path / "times.json")
    read = read_block_times(tmp_path / "times.json")
    for block in (Recurrent(8), Embed(20, 8), Project(8, 20), Project(2, 8)):
        found, again = times.of(block, 2, 2), read.of(block, 2, 2)
        assert found.forward > 0
        assert found.backward > 0
        assert again.parts == pytest.approx(found.parts, rel=1e-3)
    assert times.update_seconds(500, "Adam") > 0


def test_what_was_not_measured_is_refused_with_a_choice():
    times = calibrate(TINY, at_least=0.0001)
    with pytest.raises(ValueError, match="precision='float16' was not measured: choose float32"):
        times.of(Recurrent(8), 2, 2, "float16")
    with pytest.raises(ValueError, match="optimizer='Lion' was not measured: choose SGD"):
        times.update_seconds(10, "Lion")
    with pytest.raises(ValueError, match="precision='float8': choose float32, tf32, bfloat16"):
        calibrate(TINY, ["float8"])


def test_the_table_that_comes_with_the_course_knows_that_small_pieces_are_slow():
    times, layer = h200_block_times(), Recurrent(2048)
    assert "H200" in times.device
    for precision in ("float32", "tf32", "bfloat16"):
        small, large = (times.of(layer, sequences, 8, precision).forward for sequences in (4, 1024))
        assert large < 0.5 * 256 * small  # 256 times the work in much less than 256 times the time
    assert times.of(layer, 256, 128, "tf32").forward < 0.6 * times.of(layer, 256, 128, "float32").forward
