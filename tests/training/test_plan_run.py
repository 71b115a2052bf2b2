"""A plan runs on real ranks at the pace it expects, and takes about as long as predicted."""

from __future__ import annotations

import pytest

from course_lib.lstm import BatchSize, lstm_model
from course_lib.planning import Link, Network, Work, best_of_each_way, plans
from course_lib.training.measurement import plan_seconds
from tests.planning.tables import even_times

WORK = Work.of(
    lstm_model(vocabulary=64, hidden=32, layers=4), BatchSize(4, 8), even_times(0.4, 32, end=0.02), optimizer="SGD"
)
LINK = Link(0.0, WORK.memory[1].gradients / 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("way", [(2, 1, ""), (1, 2, ""), (1, 1, "FSDP"), (1, 1, "ZeRO-1")])
def test_an_update_takes_no_less_than_predicted(way):
    """How much more it takes depends on what else the machine does, so a clock decides nothing there."""
    made = best_of_each_way(plans(WORK, 2, Network.flat(LINK), micro_batches=(1, 2), gather_ahead=False))
    plan = next(plan for plan in made if (plan.replicas, plan.stages, plan.sharding) == way)
    assert plan_seconds(plan, WORK, LINK, updates=1) > 0.93 * plan.seconds
