"""Lesson 06: the executor against the simulator and against PyTorch's own.

Computation is paced where ranks outnumber cores: messages are always real. The planner has a benchmark of its own.
"""

from __future__ import annotations

import statistics
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from tqdm import tqdm

from course_lib import launch, trace
from course_lib.core.adding import AddingProblem
from course_lib.core.batch import Batch
from course_lib.core.model import lstm_model, squared_error
from course_lib.model_parallel.placement import equal_count
from course_lib.pipeline.message_order import Routes
from course_lib.pipeline.named_schedules import from_torch, make_schedule
from course_lib.pipeline.pipeline import Execution, Pipeline
from course_lib.pipeline.schedule import Schedule
from course_lib.pipeline.simulation import ActionCosts, makespan, measured, simulate
from course_lib.pipeline.stage import Stage
from tests.benchmarks.table import alternate, table, write_section
from tests.pipeline.test_against_torch import FIVE
from tests.pipeline.torch_pipelines import their_step

sgd = partial(torch.optim.SGD, lr=0.01)
ROUNDS = 7
PACE = ActionCosts(0.02, 0.04)  # every forward pass and every half of a backward pass takes 20 ms


BATCH = AddingProblem(16, (32, 32)).batch(range(16))


def paced_steps(schedule: Schedule, pace: ActionCosts, rounds: int = ROUNDS) -> list[list[trace.Span]]:
    """On a rank: the spans of each of several training steps, after one that warms up."""
    model = lstm_model(features=2, hidden=16, layers=6, outputs=1)
    strategy, steps = Pipeline(model, sgd, squared_error, schedule=schedule, pace=pace), []
    for _ in range(rounds + 1):
        dist.barrier()
        trace.recorder.spans.clear()
        strategy.step(BATCH)
        steps.append(list(trace.recorder.spans))
    return steps[1:]


def paced_seconds(schedule: Schedule, pace: ActionCosts) -> float:
    """The median time of a step, from the first action to the last."""
    run = launch(paced_steps, schedule, pace, ranks=len(schedule.stages), timeout=120)
    steps = zip(*run, strict=True)
    return statistics.median(
        makespan(measured(schedule, [span for spans in ranks for span in spans])) for ranks in steps
    )


def against_the_simulator() -> str:
    """Return a table: a step of each schedule as simulated and as measured, with free links and with slow ones."""
    rows = []
    schedules = [
        *(make_schedule(name, 4, 8) for name in ("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-v")),
        make_schedule("1f1b", 4, 8, recompute=True),
        make_schedule("wavefront", 4, 1, 16),
        make_schedule("zb-v", 4, 4, 2),
    ]
    for schedule, link in tqdm(list(product(schedules, (0.0, 0.01))), desc="schedules"):
        pace = ActionCosts(0.02, 0.04, link=link)
        spent, simulated = paced_seconds(schedule, pace), simulate(schedule, pace).makespan
        times = [f"{link * 1000:.0f}", f"{simulated * 1000:.0f}", f"{spent * 1000:.0f}", f"{spent / simulated:.3f}"]
        rows.append([schedule.name, f"{schedule.micro_batches} x {schedule.chunks} x {schedule.virtual}", *times])
    return table("schedule | pieces | link, ms | simulated, ms | measured, ms | ratio", rows)


def both_executors(
    name: str, batch: Batch, micro_batches: int, hidden: int, pace: ActionCosts | None, rounds: int
) -> list[float]:
    """On a rank: median seconds of PyTorch's executor and of ours, forward and backward, on the same blocks."""
    torch.manual_seed(0)
    rank, stages = dist.get_rank(), dist.get_world_size()
    model = lstm_model(features=2, hidden=hidden, layers=6, outputs=1)
    make = from_torch if name in FIVE else make_schedule
    ours = make(name if name in FIVE else name.lower(), stages, micro_batches)
    placement = equal_count(len(model), ours.stage_map.positions)
    stage = Stage.of(model, placement, rank, range(stages), squared_error, pace, ours.stage_map)
    theirs, routes = their_step(name, stage, batch, micro_batches, pace), Routes(ours, rank)

    def their_turn() -> None:
        dist.barrier()
        theirs()

    def our_turn() -> None:
        dist.barrier()
        Execution(stage, ours, batch, batch.mask.sum(), {}, routes=routes).run()

    return alternate([their_turn, our_turn], rounds=rounds)


def against_pytorch() -> str:
    """Return a table: one batch forward and backward by PyTorch's executor and by ours."""
    sizes = [(name, 2, 64, 32, None) for name in ("GPipe", "1F1B")]
    sizes += [(name, 4, 16, 8, None) for name in ("GPipe", "1F1B", *FIVE)]
    sizes += [(name, 4, 16, 8, PACE) for name in FIVE]
    rows = []
    for name, stages, hidden, steps, pace in tqdm(sizes, desc="against PyTorch"):
        batch, rounds = AddingProblem(64, (steps, steps)).batch(range(64)), ROUNDS if pace else 15
        run = launch(both_executors, name, batch, 8, hidden, pace, rounds, ranks=stages, timeout=300)
        theirs, ours = (max(times) for times in zip(*run, strict=True))
        what = f"{name}, {stages} stages, hidden {hidden}{', paced' if pace else ''}"
        rows.append([what, f"{theirs * 1000:.1f}", f"{ours * 1000:.1f}", f"{ours / theirs:.2f}"])
    return table("schedule | `torch.distributed.pipelining`, ms | ours, ms | ratio", rows)


def main() -> None:
    """Measure, print and write the tables, each as soon as it is there."""
    write_section(
        "Pipelines",
        "One update on 4 stages, forward passes and halves of backward passes paced to 20 ms, links as the column "
        f"says; the median of {ROUNDS}. Pieces are micro-batches x time chunks x virtual stages.",
        against_the_simulator(),
    )
    write_section(
        "Pipelines against PyTorch",
        "Forward and backward of one batch in 8 micro-batches; rounds alternate between the two executors, which do "
        "the same actions in the same order. Where it says so, forward passes and halves of backward passes are paced "
        "to 20 ms.",
        against_pytorch(),
    )


if __name__ == "__main__":
    main()
