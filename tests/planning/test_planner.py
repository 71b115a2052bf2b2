"""Plans for a mesh: every way is tried, and time and memory add up."""

from __future__ import annotations

import pytest

from course_lib.data import AddingProblem
from course_lib.lstm.memory import predict_memory
from course_lib.lstm.model import lstm_model
from course_lib.planning.network import Link, measure_all_reduce
from course_lib.planning.placement import BlockCost, CannotPlace
from course_lib.planning.planner import Network, Work, plans

MODEL = lstm_model(features=2, hidden=16, layers=4, outputs=1)
BATCH = AddingProblem(32, (16, 16)).batch(range(32))
COSTS = [BlockCost(0.0, 0), *[BlockCost(0.3, 0)] * 4, BlockCost(0.0, 0)]
WORK = Work.of(MODEL, BATCH, COSTS)
FREE = Network.flat(Link(0.0, 1e30))


def test_one_rank_takes_the_sum_of_all_costs_and_holds_the_whole_model():
    (plan,) = plans(WORK, 1, FREE, micro_batches=(1,))
    assert plan.seconds == pytest.approx(1.2)
    assert plan.bytes == predict_memory(MODEL, BATCH).total


def test_a_free_network_makes_data_parallelism_perfect_and_pipelines_pay_their_bubble():
    made = {(plan.replicas, plan.stages): plan for plan in plans(WORK, 4, FREE, schedules=["1f1b"], micro_batches=(4,))}
    assert set(made) == {(4, 1), (2, 2), (1, 4)}
    assert made[4, 1].seconds == pytest.approx(1.2 / 4)
    assert made[2, 2].seconds == pytest.approx(1.2 / 4 * 5 / 4)  # (m + p - 1) / m, with p = 2 and m = 4
    assert made[1, 4].seconds == pytest.approx(1.2 / 4 * 7 / 4)


def test_a_plan_costs_the_hours_of_all_its_ranks_and_the_price_is_given():
    plan = next(plan for plan in plans(WORK, 4, FREE, micro_batches=(1,)) if plan.stages == 1)
    assert plan.ranks == 4
    assert plan.price(updates=3600, per_hour=2.5) == pytest.approx(4 * 2.5 * 0.3)  # an update takes 0.3 seconds
    bubble = next(plan for plan in plans(WORK, 4, FREE, schedules=["1f1b"], micro_batches=(1,)) if plan.stages == 4)
    assert bubble.price(1, 1.0) == pytest.approx(4 * plan.price(1, 1.0))  # one stage works, four are paid


def test_a_slow_network_between_nodes_makes_stages_worth_their_bubble():
    slow = Network(inside=Link(0.0, 1e30), between=Link(0.0, 1e5), per_node=4)
    assert plans(WORK, 8, FREE)[0].stages == 1
    best = plans(WORK, 8, slow)[0]
    assert (best.replicas, best.stages) == (2, 4)
    assert best.pipeline_seconds < 0.5  # messages stay inside a node
    largest = max(sum(WORK.memory[place].gradients for place in best.placement.blocks_of(s)) for s in range(4))
    assert best.gradient_seconds == pytest.approx(largest / 1e5)  # a ring of two moves half of it twice


def test_the_measured_all_reduce_is_believed_where_there_is_one():
    network = Network.flat(Link(0.0, 1e30), collective=Link(1.0, 1e30))
    plan = next(plan for plan in plans(WORK, 4, network) if plan.replicas == 4)
    assert plan.gradient_seconds == pytest.approx(6.0)


def test_the_overhead_of_an_action_limits_how_finely_it_pays_to_cut():
    fine = plans(WORK, 4, FREE, micro_batches=(1, 2, 4, 8))
    coarse = plans(WORK, 4, FREE, micro_batches=(1, 2, 4, 8), overhead=0.05)
    pieces = [
        next(plan.schedule.micro_batches * plan.schedule.chunks for plan in made if plan.stages == 4)
        for made in (fine, coarse)
    ]
    assert pieces[0] > pieces[1]


def test_plans_that_do_not_fit_are_left_out_and_if_none_fits_it_says_what_would():
    everything = plans(WORK, 4, FREE)
    limit = sorted(plan.bytes for plan in everything)[len(everything) // 2]
    assert all(plan.bytes <= limit for plan in plans(WORK, 4, FREE, memory=limit))
    least = min(plan.bytes for plan in everything)
    with pytest.raises(CannotPlace, match=f"the smallest needs {least:,} bytes"):
        plans(WORK, 4, FREE, memory=least - 1)


def test_plans_come_fastest_first_and_never_cut_finer_than_there_are_sequences_or_blocks():
    made = plans(WORK, 8, FREE, micro_batches=(1, 16), chunks=(4, 32))
    assert [plan.seconds for plan in made] == sorted(plan.seconds for plan in made)
    assert all(plan.replicas * plan.schedule.micro_batches <= 32 and plan.schedule.chunks <= 16 for plan in made)
    assert {plan.stages for plan in made} == {1, 2, 4}  # six blocks


def test_memory_falls_with_smaller_pieces_and_of_small_batches_with_stages():
    made = plans(WORK, 4, FREE, schedules=["1f1b"], micro_batches=(1, 8))
    held = {(plan.stages, plan.schedule.micro_batches): plan.bytes for plan in made}
    assert all(held[stages, 8] < held[stages, 1] for stages in (1, 2))
    weights = {plan.stages: plan.bytes for plan in plans(Work.of(MODEL, BATCH.rows([0] * 4), COSTS), 4, FREE)}
    assert weights[4] < weights[2] < weights[1]


def test_the_link_of_an_all_reduce_explains_its_time():
    link = measure_all_reduce(2, sizes=(4_000, 32_000_000), repeats=5)
    assert [piece for piece, _ in link.measured] == [2_000, 16_000_000]
    for piece, seconds in link.measured:
        assert link.all_reduce_seconds(2 * piece, 2) == pytest.approx(2 * seconds, rel=1e-3)
    with pytest.raises(ValueError, match="ranks=1: an all-reduce needs at least two"):
        measure_all_reduce(1)
