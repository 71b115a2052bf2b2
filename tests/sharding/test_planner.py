"""Plans for a mesh: every way is tried, time and memory add up, and computation hides what it can."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.core.adding import AddingProblem
from course_lib.core.memory import BatchSize, predict_memory
from course_lib.core.model import lstm_model
from course_lib.data_parallel.network import sent_by
from course_lib.messages.link import Link
from course_lib.model_parallel.placement import CannotPlace, Placement
from course_lib.model_parallel.work import Work
from course_lib.one_device.block_times import BlockSeconds, BlockTimes
from course_lib.pipeline.named_schedules import SCHEDULES
from course_lib.sharding.choose_plan import best_of_each_way, explain, plans
from course_lib.sharding.fsdp_plan import fully_sharded_seconds
from course_lib.sharding.network import Network
from course_lib.sharding.plan import Pieces, Plan, pipelined, stage_bytes
from tests.one_device.tables import even_times

MODEL = lstm_model(features=2, hidden=16, layers=4, outputs=1)
BATCH = AddingProblem(32, (16, 16)).batch(range(32))
TIMES = even_times(layer=0.3, cells=32 * 16)
WORK = Work.of(MODEL, BATCH, TIMES)
FREE = Network.flat(Link(0.0, 1e30))
PLAIN = {"schedules": ["1f1b"], "recompute": (False,), "sharding": False}


def test_one_rank_takes_the_sum_of_all_costs_and_holds_the_whole_model():
    (plan,) = plans(WORK, 1, FREE, micro_batches=(1,), recompute=(False,))
    assert plan.seconds == pytest.approx(1.2)
    assert plan.bytes == predict_memory(MODEL, BATCH).total


@pytest.mark.parametrize(("optimizer", "numbers"), [("SGD", 0), ("SGD with momentum", 1), ("Adam", 2)])
def test_memory_is_that_of_the_optimizer_that_is_used(optimizer, numbers):
    work = Work.of(MODEL, BATCH, TIMES, optimizer=optimizer)
    (plan,) = plans(work, 1, FREE, micro_batches=(1,), recompute=(False,))
    assert plan.bytes == predict_memory(MODEL, BATCH, optimizer_numbers=numbers).total


def test_the_update_of_the_weights_takes_its_time_and_sharding_divides_it():
    work = Work.of(MODEL, BATCH, even_times(0.3, 32 * 16, update=0.05))
    (plan,) = plans(work, 1, FREE, micro_batches=(1,), recompute=(False,))
    assert plan.seconds == pytest.approx(1.25)
    assert plan.parts["updating weights"] == pytest.approx(0.05)


def test_a_free_network_makes_data_parallelism_perfect_and_pipelines_pay_their_bubble():
    made = {(plan.replicas, plan.stages): plan for plan in plans(WORK, 4, FREE, micro_batches=(4,), **PLAIN)}
    assert set(made) == {(4, 1), (2, 2), (1, 4)}
    assert made[4, 1].seconds == pytest.approx(1.2 / 4)
    assert made[2, 2].seconds == pytest.approx(1.2 / 4 * 5 / 4)  # (m + p - 1) / m, with p = 2 and m = 4
    assert made[1, 4].seconds == pytest.approx(1.2 / 4 * 7 / 4)
    assert made[1, 4].parts["bubble"] == pytest.approx(1.2 / 4 * 3 / 4)


def test_every_way_is_a_candidate():
    made = plans(WORK, 4, Network(Link(0.0, 1e30), Link(0.0, 1e9), per_node=2), micro_batches=(1, 4))
    assert {plan.pieces.name for plan in made if plan.stages > 1} == {
        "1f1b", "wavefront", "interleaved", "zb-h1", "zb-v",
    }  # fmt: skip
    assert {plan.inside for plan in made if (plan.replicas, plan.stages) == (2, 2)} == {"stages", "replicas"}
    assert {(plan.replicas, plan.shards) for plan in made if plan.sharding == "FSDP"} == {(1, 4), (2, 2)}
    divided = {(plan.replicas, plan.shards, plan.stages) for plan in made if plan.sharding == "ZeRO-1"}
    assert divided == {(1, 4, 1), (2, 2, 1), (1, 2, 2)}
    assert any(plan.pieces.recompute for plan in made)
    assert any(plan.stages == 1 and plan.pieces.micro_batches == 4 for plan in made)  # accumulation


def test_every_named_schedule_is_tried_where_each_of_its_parts_gets_a_block():
    made = plans(WORK, 4, FREE, schedules=list(SCHEDULES), micro_batches=(2,), sharding=False)
    tried = {stages: {plan.pieces.name for plan in made if plan.stages == stages} for stages in (2, 4)}
    assert tried == {2: set(SCHEDULES), 4: set(SCHEDULES) - {"interleaved", "looped-bfs", "zb-v"}}  # of six blocks


def test_small_pieces_cost_what_was_measured_for_small_pieces():
    slow_when_small = Work.of(MODEL, BATCH, even_times(0.3, 32 * 16, end=0.01))
    coarse, fine = (
        plans(slow_when_small, 1, FREE, micro_batches=(count,), recompute=(False,))[0].seconds for count in (1, 8)
    )
    assert fine - coarse == pytest.approx(7 * 2 * 0.01)  # the two ends take 0.01 s for each piece, however small


def test_gradients_are_sent_while_the_backward_pass_goes_on_and_only_the_rest_counts():
    layer = WORK.memory[1].gradients
    for bandwidth, expected in ((layer / 0.01, 0.01), (layer / 1e-3, 1e-3)):  # a ring of two sends each byte once
        (plan,) = (
            plan
            for plan in plans(WORK, 2, Network.flat(Link(0.0, bandwidth)), micro_batches=(1,), **PLAIN)
            if plan.stages == 1
        )
        ends = [WORK.memory[place].gradients / bandwidth for place in (0, 5)]
        assert plan.exposed_seconds == pytest.approx(expected + ends[0], rel=1e-6)


PRECISIONS = BlockTimes("even", dict.fromkeys(("float32", "bfloat16"), TIMES.precisions["float32"]))  # equally fast


def test_autocast_halves_activations_and_gathered_weights_on_the_wire_and_keeps_copies_of_the_weights():
    single, half = (Work.of(MODEL, BATCH, PRECISIONS, precision=precision) for precision in ("float32", "bfloat16"))
    weights = sum(block.parameters for block in single.memory)
    slow = Network.flat(Link(0.0, weights / 1e3))  # nothing hides: a pass of all weights takes 1000 s in float32

    def gathering(work):
        made = plans(work, 2, slow, micro_batches=(1,), recompute=(False,))
        return next(plan.exposed_seconds for plan in made if plan.sharding == "FSDP")

    last = single.memory[-1].parameters / weights  # the last block is gathered only once
    assert gathering(single) - gathering(half) == pytest.approx((2 - last) * 1e3 / 4, rel=0.01)  # gradients: float32
    (plan,), (light,) = (plans(work, 1, FREE, micro_batches=(1,), recompute=(False,)) for work in (single, half))
    saved = predict_memory(MODEL, BATCH).activations / 2
    assert light.bytes == pytest.approx(plan.bytes - saved + weights / 2, abs=8)


def test_a_slow_network_between_nodes_makes_stages_worth_their_bubble():
    slow = Network(inside=Link(0.0, 1e30), between=Link(0.0, 3e3), per_node=4)
    assert plans(WORK, 8, FREE, **PLAIN)[0].stages == 1
    best = plans(WORK, 8, slow, **PLAIN)[0]
    assert best.stages > 1


def test_the_order_of_the_mesh_is_decided_by_numbers():
    """Heavy gradients want replicas inside a node; heavy activations want stages there."""
    network = Network(inside=Link(0.0, 1e9), between=Link(0.0, 1e6), per_node=4)
    best = {}
    for name, sequences, hidden in (("gradients", 16, 64), ("activations", 1024, 4)):
        work = Work.of(
            lstm_model(features=2, hidden=hidden, layers=4, outputs=1),
            BatchSize(16, sequences),
            even_times(0.3, sequences * 16),
        )
        made = plans(work, 16, network, micro_batches=(4,), **PLAIN)
        best[name] = next(plan for plan in made if plan.stages == 4).inside
    assert best == {"gradients": "replicas", "activations": "stages"}


def test_the_overhead_of_an_action_limits_how_finely_it_pays_to_cut():
    sizes = {"micro_batches": (1, 2, 4, 8), "sharding": False}
    fine, coarse = (plans(WORK, 4, FREE, overhead=overhead, **sizes) for overhead in (0.0, 0.05))
    pieces = [
        next(plan.schedule.micro_batches * plan.schedule.chunks for plan in made if plan.stages == 4)
        for made in (fine, coarse)
    ]
    assert pieces[0] > pieces[1]


def test_plans_that_do_not_fit_are_left_out_and_if_none_fits_it_says_what_would():
    everything = plans(WORK, 4, FREE)
    limit = sorted(plan.bytes for plan in everything)[len(everything) // 2]
    assert all(plan.bytes <= limit for plan in plans(WORK, 4, FREE, memory=limit))
    with pytest.raises(CannotPlace, match=r"no plan for 4 ranks fits into 10 bytes on each: the smallest needs [\d,]+"):
        plans(WORK, 4, FREE, memory=10)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 400))
def test_where_any_placement_fits_the_planner_finds_one(stages, layers, words):
    """All placements are tried by hand: with just the memory that the smallest of them needs, there is a plan."""
    model = lstm_model(vocabulary=8 + words, hidden=8, layers=layers + 1, outputs=8)
    work = Work.of(model, BatchSize(4, 8), even_times(0.3, 32))
    pieces, blocks = Pieces("1f1b", stages, 2), len(model)
    placements = [Placement.of_cuts(blocks, cuts) for cuts in combinations(range(1, blocks), stages - 1)]
    needs = [
        max(stage_bytes(work, 1, pieces.prepared, stage, placement.blocks_of(stage)) for stage in range(stages))
        for placement in placements
    ]
    options = {"schedules": ["1f1b"], "micro_batches": (2,), "recompute": (False,), "sharding": False}
    made = plans(work, stages, FREE, memory=round(min(needs)) + 1, **options)
    assert any(plan.stages == stages for plan in made)


def test_plans_come_fastest_first_and_never_cut_finer_than_there_are_sequences_or_blocks():
    made = plans(WORK, 8, FREE, micro_batches=(1, 16), chunks=(4, 32))
    assert [plan.seconds for plan in made] == sorted(plan.seconds for plan in made)
    assert all(plan.replicas * plan.schedule.micro_batches <= 32 and plan.schedule.chunks <= 16 for plan in made)
    assert {plan.stages for plan in made} == {1, 2, 4}  # six blocks


def test_memory_falls_with_smaller_pieces_with_recomputation_and_with_shards():
    made = plans(WORK, 4, FREE, schedules=["gpipe"], micro_batches=(1, 8), zero=False)
    held = {(p.stages, p.pieces.micro_batches, p.pieces.recompute, p.shards): p.bytes for p in made}
    assert held[1, 8, False, 1] < held[1, 1, False, 1]
    assert held[2, 8, True, 1] < held[2, 8, False, 1]
    assert held[1, 1, False, 4] < held[1, 1, False, 2] < held[1, 1, False, 1]


def zero_plans(network: Network, ranks: int = 4, work: Work = WORK) -> dict[tuple[int, int], Plan]:
    """The plans for two stages, by (replicas, shards)."""
    made = plans(work, ranks, network, schedules=["1f1b"], micro_batches=(2,), recompute=(False,))
    return {(plan.replicas, plan.shards): plan for plan in made if plan.stages == 2}


def test_zero_1_divides_the_optimizer_and_nothing_else():
    work = Work.of(MODEL, BATCH, even_times(0.3, 32 * 16, update=0.05))
    whole, divided = zero_plans(FREE, work=work)[2, 1], zero_plans(FREE, work=work)[1, 2]
    saved = [sum(work.memory[place].optimizer for place in whole.placement.blocks_of(stage)) / 2 for stage in (0, 1)]
    assert divided.placement == whole.placement
    assert whole.bytes - divided.bytes in (round(saved[0]), round(saved[1]))
    assert divided.name == "2 x 2 ZeRO-1 over 2"
    assert divided.mesh == whole.mesh == "2 x 2"


def test_zero_1_gathers_while_the_pipeline_fills_and_scatters_in_half_the_time_of_a_sum():
    bandwidth = WORK.memory[1].gradients / 0.01
    plan, divided = (zero_plans(Network.flat(Link(0.0, bandwidth)))[mesh] for mesh in ((2, 1), (1, 2)))
    first = WORK.memory[0].parameters / 2 / bandwidth  # its first block; the others arrive while that one computes
    layer = 0.01 / 2
    assert divided.gather_seconds == pytest.approx(first + layer, rel=0.2)
    assert divided.exposed_seconds - divided.gather_seconds == pytest.approx(plan.exposed_seconds / 2, rel=0.2)


def test_with_replicas_the_rows_are_summed_over_them_as_well():
    network = Network.flat(Link(0.0, WORK.memory[1].gradients / 0.01))
    made = {shards: pipelined(WORK, 4, Pieces("1f1b", 2, 2), network, "stages", 0.0, shards) for shards in (1, 2, 4)}
    assert [made[shards].replicas for shards in (1, 2, 4)] == [4, 2, 1]
    own = [sum(WORK.memory[place].gradients for place in made[2].placement.blocks_of(stage)) for stage in (0, 1)]
    across = max(own) / 2 / network.between.bandwidth  # a ring of two sends each byte of the rows once
    late = made[2].exposed_seconds - made[2].gather_seconds
    assert across < late < across + 2 * 0.01
    assert made[4].bytes < made[2].bytes < made[1].bytes


def test_a_message_for_each_weight_of_a_block_pays_its_latency():
    latency = 1e-3
    made = plans(WORK, 2, Network.flat(Link(latency, 1e30)), micro_batches=(1,), **PLAIN)
    (plan,) = (plan for plan in made if plan.stages == 1)
    assert plan.exposed_seconds >= 2 * 4 * latency  # of the first layer alone: a ring of two has two rounds


def test_in_half_precision_messages_and_gathered_weights_have_two_bytes_and_gradients_four():
    whole, half = (Work.of(MODEL, BATCH, PRECISIONS, precision=name) for name in ("float32", "bfloat16"))
    assert [2 * edge for edge in half.edges] == list(whole.edges)
    assert [2 * half.gathered(place) for place in range(6)] == [whole.gathered(place) for place in range(6)]
    assert [each.gradients for each in half.memory] == [each.gradients for each in whole.memory]
    slow = Network.flat(Link(0.0, 1e4))
    sent = [pipelined(work, 1, Pieces("1f1b", 2, 2), slow, "stages", 0.0).costs.link for work in (whole, half)]
    assert sent[0] == pytest.approx(2 * sent[1])


def test_the_parts_of_every_plan_add_up_to_its_time():
    network = Network(Link(1e-4, 1e8), Link(1e-3, 1e7), per_node=2)
    for plan in plans(WORK, 4, network, micro_batches=(1, 4), overhead=0.001):
        assert sum(plan.parts.values()) == pytest.approx(plan.seconds)
        assert min(plan.parts.values()) > 0


def test_an_explanation_says_what_makes_the_difference():
    network = Network.flat(Link(0.0, 3e5))
    best = best_of_each_way(plans(WORK, 4, network, micro_batches=(4,), **PLAIN))
    assert len(best) == 3
    replicas = next(plan for plan in best if plan.stages == 1)
    pipeline = next(plan for plan in best if plan.stages == 4)
    told = explain(*sorted((replicas, pipeline), key=lambda plan: plan.seconds))
    ahead = told.runner_up.seconds - told.winner.seconds
    assert f"by {ahead * 1000:.1f} ms" in told.reason
    assert "summing gradients" in str(told)
    assert "bubble" in str(told)


def test_a_plan_says_which_strategy_runs_it():
    made = plans(WORK, 4, FREE, micro_batches=(2,))
    zero_bubble = [plan for plan in made if plan.stages == 2 and plan.pieces.name == "zb-h1"]
    for sharding, mesh in (("", {"replicas": 2}), ("ZeRO-1", {"replicas": 1, "shards": 2})):
        name, options = next(plan for plan in zero_bubble if plan.sharding == sharding).strategy
        assert (name, options["schedule"], options["micro_batches"]) == ("hybrid", "zb-h1", 2)
        assert {key: value for key, value in options.items() if key in ("replicas", "shards")} == mesh
    name, options = next(plan for plan in made if plan.sharding == "FSDP" and plan.shards == 4).strategy
    assert (name, options) == ("fsdp", {"replicas": 1, "micro_batches": 2})


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
