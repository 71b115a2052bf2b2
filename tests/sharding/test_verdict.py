"""What would have to change for another mesh to win, and what is timed again to find out."""

from __future__ import annotations

import pytest
import torch

from course_lib.core.adding import AddingProblem
from course_lib.core.memory import BatchSize
from course_lib.core.model import lstm_model
from course_lib.messages.link import Link
from course_lib.model_parallel.placement import CannotPlace
from course_lib.model_parallel.work import Work
from course_lib.one_device.block_times import h200_block_times
from course_lib.sharding.choose_plan import plans
from course_lib.sharding.network import Network
from course_lib.sharding.what_if import BETWEEN, LATENCY, SEQUENCES, SPEED, sensitivity, timed_again
from tests.one_device.tables import even_times

MODEL = lstm_model(features=2, hidden=16, layers=4, outputs=1)
WORK = Work.of(MODEL, AddingProblem(32, (16, 16)).batch(range(32)), even_times(layer=0.3, cells=32 * 16))
SLOW = Network(inside=Link(0.0, 1e30), between=Link(0.0, 3e3), per_node=4)
FAST = Network.flat(Link(0.0, 1e30))
SIZES = {"schedules": ["1f1b"], "micro_batches": (1, 4), "recompute": (False,), "zero": False, "sharding": False}


def told(network: Network = SLOW, memory: int | None = None):
    return sensitivity(plans(WORK, 8, network, **SIZES), WORK, network, memory=memory)


def test_a_plan_timed_again_is_the_plan():
    for plan in plans(WORK, 4, SLOW, micro_batches=(1, 2)):
        assert timed_again(plan, WORK, SLOW) == plan


def test_for_other_work_the_blocks_are_placed_anew():
    with torch.device("meta"):
        large = lstm_model(vocabulary=50_000, hidden=4096, layers=6)
    many, few = (Work.of(large, BatchSize(128, n), h200_block_times(), precision="bfloat16") for n in (256, 64))
    network = Network.flat(Link(20e-6, 300e9))
    only = {"schedules": ["wavefront"], "micro_batches": (1,), "chunks": (8,), "recompute": (False,), "sharding": False}
    before, after = ({plan.mesh: plan for plan in plans(work, 4, network, **only)} for work in (many, few))
    assert before["1 x 4"].placement != after["1 x 4"].placement
    assert {mesh: timed_again(plan, few, network) for mesh, plan in before.items()} == after


def test_on_both_sides_of_the_change_the_planner_agrees():
    """The plans that are timed again are few; here all of them are made anew, just before the change and just after."""
    found = told()
    (change,) = [change for change in found.changes if change.quantity == BETWEEN and change.factor > 1]
    for factor, mesh in ((change.factor * 0.97, found.winner.mesh), (change.factor * 1.03, change.winner.mesh)):
        network = Network(SLOW.inside, Link(0.0, SLOW.between.bandwidth * factor), 4)
        assert plans(WORK, 8, network, **SIZES)[0].mesh == mesh
    assert found.winner.mesh != change.winner.mesh
    assert f"with {change.factor:.1f} times as much" in str(change)


def test_slower_devices_have_the_effect_of_a_faster_network():
    faster, slower = (
        next(change.factor for change in told().changes if change.quantity == what and (change.factor > 1) == up)
        for what, up in ((BETWEEN, True), (SPEED, False))
    )
    assert faster == pytest.approx(1 / slower, rel=0.05)


def test_what_changes_nothing_is_said_too():
    found = told()
    assert LATENCY not in {change.quantity for change in found.changes}  # there is none to multiply
    assert LATENCY in str(found).splitlines()[-1]


def test_only_plans_that_fit_can_win():
    limit = min(plan.bytes for plan in plans(WORK, 8, FAST, **SIZES) if plan.mesh == "8 x 1") - 1
    assert told(FAST).winner.mesh == "8 x 1"
    assert told(FAST, memory=limit).winner.mesh != "8 x 1"
    with pytest.raises(CannotPlace, match="nothing wins"):
        told(memory=10)


def test_fewer_sequences_leave_out_plans_that_would_have_none():
    (few,) = [change for change in told(FAST).changes if change.quantity == SEQUENCES]
    assert told(FAST).winner.mesh == "8 x 1"
    assert (few.winner.mesh, few.value) == ("4 x 2", " (7)")  # one too few for eight replicas
