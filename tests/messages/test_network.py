"""Two numbers predict the time of a message, a ring or a sum; a mesh's order decides which links it uses."""

from __future__ import annotations

import pytest

from course_lib.messages.link import Line, Link, fit, fit_line, measure_link
from course_lib.messages.link_picture import draw_link as draw
from course_lib.sharding.network import Network


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


INSIDE, BETWEEN = Link(0.0, 300e9), Link(0.0, 50e9)
NETWORK = Network(INSIDE, BETWEEN, per_node=8)


def test_with_stages_inside_messages_stay_in_a_node_and_sums_leave_it():
    assert NETWORK.between_stages(4, 8, "stages") == INSIDE
    assert NETWORK.replicas_per_node(4, 8, "stages") == 1


def test_with_replicas_inside_it_is_the_other_way_round():
    assert NETWORK.between_stages(8, 4, "replicas") == BETWEEN
    assert NETWORK.replicas_per_node(8, 4, "replicas") == 8


def test_stages_that_do_not_fill_nodes_evenly_send_some_messages_between_nodes():
    assert NETWORK.between_stages(4, 3, "stages") == BETWEEN
    assert NETWORK.between_stages(1, 16, "stages") == BETWEEN


def test_where_one_node_has_room_for_all_there_is_one_order():
    assert NETWORK.orders(4, 2) == ("stages",)
    assert NETWORK.orders(8, 2) == ("stages", "replicas")
    assert NETWORK.orders(16, 1) == ("stages",)
    assert Network.flat(INSIDE).orders(8, 8) == ("stages",)
    assert NETWORK.between_stages(4, 2, "replicas") == INSIDE
    assert NETWORK.replicas_per_node(4, 2, "stages") == 4


def test_a_sum_goes_through_nodes_first_and_then_each_gpu_sends_its_piece_between_them():
    size = 8e9
    inside = 2 * 7 / 8 * size / 300e9
    between = 2 * 3 / 4 * (size / 8) / 50e9
    assert NETWORK.all_reduce_seconds(size, 32, per_node=8) == pytest.approx(inside + between)
    assert NETWORK.all_reduce_seconds(size, 4, per_node=1) == pytest.approx(2 * 3 / 4 * size / 50e9)
    assert NETWORK.all_reduce_seconds(size, 8, per_node=8) == pytest.approx(inside)


def test_to_gather_is_half_of_a_sum():
    assert NETWORK.gather_seconds(1e9, 16, 8) == pytest.approx(NETWORK.all_reduce_seconds(1e9, 16, 8) / 2)


def test_many_ranks_do_not_wait_for_one_message_after_another_round_a_ring():
    slow = Network(Link(1.0, 1e30), Link(1.0, 1e30), per_node=1)
    assert slow.all_reduce_seconds(1.0, 1024, 1) == pytest.approx(2 * 10)
    assert slow.all_reduce_seconds(1.0, 2, 1) == pytest.approx(2 * 1)


def test_a_ring_of_four_ranks_takes_six_rounds():
    assert Link(1.0, 1e30).all_reduce_seconds(100, 4) == pytest.approx(6.0)
