"""A plan runs on real ranks at the pace it expects, and takes about as long as predicted."""

from __future__ import annotations

import pytest

from course_lib.core.memory import BatchSize, lstm_size
from course_lib.core.model import lstm_model
from course_lib.messages.link import Link
from course_lib.model_parallel.work import Work
from course_lib.one_device.block_times import h200_block_times
from course_lib.sharding.choose_plan import best_of_each_way, plans
from course_lib.sharding.measurement import Twin, gather_paces, plan_seconds
from course_lib.sharding.network import Network
from tests.one_device.tables import even_times

WORK = Work.of(
    lstm_model(vocabulary=64, hidden=256, layers=4), BatchSize(4, 8), even_times(0.4, 32, end=0.02), optimizer="SGD"
)
LINK = Link(0.0, WORK.memory[1].gradients / 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("way", [(2, 1, ""), (1, 2, ""), (1, 1, "FSDP"), (1, 1, "ZeRO-1")])
def test_an_update_takes_about_as_long_as_predicted(way):
    """How much more it takes depends on what else the machine does; the wrong link would take 20 times as long."""
    made = best_of_each_way(plans(WORK, 2, Network.flat(LINK), micro_batches=(1, 2), gather_ahead=False))
    plan = next(plan for plan in made if (plan.replicas, plan.stages, plan.sharding) == way)
    assert 0.93 * plan.seconds < plan_seconds(plan, WORK, LINK, updates=1) < 10 * plan.seconds


@pytest.mark.parametrize("shards", [2, 4])
def test_the_paces_of_a_sharded_plan_add_up_to_its_time(shards):
    """Blocks are gathered in turn here, twice each but for the last; shards are also summed over the replicas."""
    made = plans(WORK, 4, Network.flat(LINK), micro_batches=(1,), gather_ahead=False)
    plan = next(plan for plan in made if plan.sharding == "FSDP" and plan.shards == shards)
    paces = gather_paces(plan, WORK, LINK)
    spent = sum(2 * pace.gather + pace.forward + pace.backward + pace.scatter for pace in paces.values())
    assert spent - paces[max(paces)].gather == pytest.approx(plan.seconds - plan.update_seconds)


def test_the_blocks_of_a_twin_are_as_large_beside_each_other_as_those_of_the_planned_model():
    planned = Work.of(lstm_size(50_000, 4096, 6), BatchSize(4, 8), h200_block_times())
    twin = Work.of(Twin(planned).model(), BatchSize(4, 8), h200_block_times())
    layer, ours = planned.memory[1].parameters, twin.memory[1].parameters
    for large, small in zip(planned.memory, twin.memory, strict=True):
        assert small.parameters / ours == pytest.approx(large.parameters / layer, rel=0.04)  # biases
