"""Lesson 07's planner: predicted against measured, over plans of 2, 3 and 4 ranks.

What is planned is a job for H200s, with the block times that come with the course. Real ranks run a small twin of it at
that pace: blocks, messages and sums last as long as they would; what waits for what, and hides behind what, is real.
"""

from __future__ import annotations

import statistics

import torch
from tqdm import tqdm

from course_lib import launch
from course_lib.core.memory import BatchSize
from course_lib.core.model import cross_entropy, lstm_model
from course_lib.messages.link import Link
from course_lib.model_parallel.work import Work
from course_lib.one_device.block_times import h200_block_times
from course_lib.pipeline.named_schedules import one_f_one_b
from course_lib.pipeline.schedule import Schedule
from course_lib.sharding.choose_plan import plans
from course_lib.sharding.hybrid import Hybrid
from course_lib.sharding.measurement import Twin, plan_seconds, sgd, update_times
from course_lib.sharding.network import Network
from course_lib.sharding.plan import Plan
from tests.benchmarks.table import table, write_section

LINK = Link(20e-6, 12e9)
FASTEST, OTHERS = 6, 10  # plans of each number of ranks that are measured: the best predicted, and some of the rest
SIZES = {"micro_batches": (1, 2, 4, 8), "chunks": (2, 4), "gather_ahead": False}


def job() -> Work:
    """Six layers of 4096 units, 64 sequences of 256 steps, and plain SGD."""
    with torch.device("meta"):
        model = lstm_model(vocabulary=16_384, hidden=4096, layers=6)
    return Work.of(model, BatchSize(steps=256, sequences=64), h200_block_times(), optimizer="SGD")


def can_be_paced(plan: Plan) -> bool:
    """Of a sharded model with several micro-batches, the backward passes that send nothing cannot be paced."""
    return plan.shards == 1 or plan.pieces.micro_batches == 1


def chosen(made: list[Plan]) -> list[Plan]:
    """The fastest predicted, and every so many-th of the others."""
    rest = made[FASTEST:]
    return made[:FASTEST] + rest[:: max(1, len(rest) // OTHERS)][:OTHERS]


def starting_an_action(work: Work) -> float:
    """What an action costs beside its pace: of an unpaced update, a share for each action in a row."""
    schedule = one_f_one_b(4, 8)
    run = launch(time_unpaced, schedule, Twin(work), ranks=4, timeout=300)
    return statistics.median(max(times) for times in zip(*run, strict=True)) / (2 * (8 + 3))


def time_unpaced(schedule: Schedule, twin: Twin) -> list[float]:
    strategy = Hybrid(twin.model(), sgd, cross_entropy, replicas=1, schedule=schedule)
    return update_times(strategy, twin.batch(schedule.chunks), updates=3)


def main() -> None:
    """Measure, print and write the table."""
    work, rows, errors, lost = job(), [], [], []
    overhead = starting_an_action(work)
    for ranks in (2, 3, 4):
        everything = plans(work, ranks, Network.flat(LINK), overhead=overhead, **SIZES)
        made = chosen([plan for plan in everything if can_be_paced(plan)])
        spent = [plan_seconds(plan, work, LINK) for plan in tqdm(made, desc=f"{ranks} ranks", disable=None)]
        lost.append(spent[0] / min(spent))
        for plan, seconds in zip(made, spent, strict=True):
            errors.append(abs(plan.seconds / seconds - 1))
            numbers = [f"{plan.seconds * 1000:.0f}", f"{seconds * 1000:.0f}", f"{plan.seconds / seconds - 1:+.1%}"]
            rows.append([plan.name, plan.pieces, *numbers, f"{seconds / min(spent):.2f}"])
    about = (
        f"{len(rows)} plans of 2 to 4 ranks for six layers of 4096 units on H200s and a link of 12 GB/s; paced ranks, "
        "blocks gathered in turn. For each number of ranks: the plans predicted best, the planner's choice first, and "
        f"some of the others. Starting an action takes {overhead * 1000:.1f} ms. Median error "
        f"{statistics.median(errors):.1%}, largest {max(errors):.1%}. The chosen plan against the best measured: "
        f"{', '.join(f'{ratio:.2f}' for ratio in lost)}."
    )
    head = "replicas x stages | pieces | predicted, ms | measured, ms | error | against the best"
    write_section("Planner", about, table(head, rows))


if __name__ == "__main__":
    main()
