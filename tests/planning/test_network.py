"""Two numbers predict the time of a message, and of a ring of them."""

from __future__ import annotations

import pytest

from course_lib.pictures import link as draw
from course_lib.planning.network import Line, Link, fit, fit_line, measure_link


def test_the_fit_finds_the_two_numbers_that_made_the_times():
    true = Link(latency=2e-4, bandwidth=3e9)
    found = fit([(size, true.seconds(size)) for size in (4, 1_000, 100_000, 10_000_000)])
    assert found.latency == pytest.approx(true.latency)
    assert found.bandwidth == pytest.approx(true.bandwidth)


def test_a_fit_to_noise_still_gives_numbers_that_make_sense():
    found = fit([(4, 2e-4), (1_000, 1e-4)])
    assert found.latency > 0
    assert found.bandwidth > 0


def test_one_size_is_not_enough_for_a_line():
    with pytest.raises(ValueError, match="at least two sizes"):
        fit([(4, 1e-4), (4, 2e-4)])


def test_a_measured_link_is_slower_for_large_messages_and_can_be_drawn():
    link = measure_link(sizes=(4, 32_000_000), repeats=5)
    (small, quick), (large, slow) = link.measured
    assert (small, large) == (4, 32_000_000)
    assert slow > quick > 0
    assert draw(link).png.startswith(b"\x89PNG")


def test_the_knee_of_a_line_is_where_both_parts_are_equal():
    line = fit_line([(x, 3.0 + 0.5 * x) for x in (1, 4, 16, 256)])
    assert (line.fixed, line.each) == (pytest.approx(3.0), pytest.approx(0.5))
    assert line.knee == pytest.approx(6.0)
    assert line.at(line.knee) == pytest.approx(2 * line.fixed)
    assert Line(0.0, 2.0).knee == 0
