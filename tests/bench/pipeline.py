"""Lesson 06: the executor against the simulator and PyTorch's own, and what the schedules gain.

Computation is paced where ranks outnumber cores: messages are always real. The planner has a benchmark of its own.
"""

from __future__ import annotations

import statistics
from functools import partial

import torch
import torch.distributed as dist
from tqdm import tqdm

from course_lib import launch, trace
from course_lib.data import AddingProblem, Batch
from course_lib.lstm.model import SequenceModel, lstm_model, squared_error
from course_lib.planning.placement import equal_count
from course_lib.planning.schedule import Schedule
from course_lib.planning.schedules import from_torch, make_schedule, naive, wavefront
from course_lib.planning.simulation import ActionCosts, makespan, measured, simulate
from course_lib.strategies import Pipeline
from course_lib.strategies.execution import Execution
from course_lib.strategies.mail import Routes
from course_lib.strategies.stage import Stage
from tests.bench.data_parallel import alternate
from tests.bench.table import describe_machine, write_section
from tests.strategies.test_against_torch import FIVE
from tests.strategies.torch_pipelines import their_step

sgd = partial(torch.optim.SGD, lr=0.01)
ROUNDS = 7
PACE = ActionCosts(0.02, 0.04)  # every forward pass and every half of a backward pass takes 20 ms


def small_model() -> SequenceModel:
    return lstm_model(features=2, hidden=16, layers=6, outputs=1)


BATCH = AddingProblem(16, (32, 32)).batch(range(16))


def paced_steps(schedule: Schedule, pace: ActionCosts, rounds: int = ROUNDS) -> list[list[trace.Span]]:
    """On a rank: the spans of each of several training steps, after one that warms up."""
    strategy, steps = Pipeline(small_model(), sgd, squared_error, schedule=schedule, pace=pace), []
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


def described(schedule: Schedule) -> str:
    return f"{schedule.name} | {schedule.micro_batches} x {schedule.chunks} x {schedule.virtual}"


def against_the_simulator() -> list[str]:
    rows = []
    schedules = [
        *(make_schedule(name, 4, 8) for name in ("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-v")),
        make_schedule("1f1b", 4, 8, recompute=True),
        make_schedule("wavefront", 4, 1, 16),
        make_schedule("zb-v", 4, 4, 2),
    ]
    for schedule in tqdm(schedules, desc="schedules"):
        for pace in (PACE, ActionCosts(0.02, 0.04, link=0.01)):
            spent, simulated = paced_seconds(schedule, pace), simulate(schedule, pace).makespan
            cells = f"{simulated * 1000:.0f} | {spent * 1000:.0f} | {spent / simulated:.3f}"
            rows.append(f"| {described(schedule)} | {pace.link * 1000:.0f} | {cells} |")
    return rows


def against_1f1b() -> list[str]:
    """The same batch: on each of 4 stages 0.32 s of work forward, and twice as much backward."""
    whole, rows, first = ActionCosts(0.32, 0.64), [], None
    for name in tqdm(("1f1b", "interleaved", "zb-h1", "zb-v"), desc="against 1F1B"):
        schedule = make_schedule(name, 4, 8)
        pace = whole.split_over(schedule)
        found = simulate(schedule, pace)
        spent = paced_seconds(schedule, pace)
        first = first or (found.makespan, spent)
        ratios = f"{first[0] / found.makespan:.3f} | {first[1] / spent:.3f}"
        held = max(share.total for share in found.peak_share)
        rows.append(
            f"| {described(schedule)} | {found.bubble:.1%} | {found.makespan * 1000:.0f} | {spent * 1000:.0f} | "
            f"{ratios} | {held:.0%} |"
        )
    return rows


def against_naive() -> tuple[float, ...]:
    """Seconds for the same batch, 0.32 s of work forward and as much backward on each of 4 stages."""
    whole = ActionCosts(0.32, 0.32)
    return tuple(paced_seconds(schedule, whole.split_over(schedule)) for schedule in (naive(4, 1), wavefront(4, 1, 16)))


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


def compared(name: str, stages: int, hidden: int, steps: int, pace: ActionCosts | None) -> str:
    batch, rounds = AddingProblem(64, (steps, steps)).batch(range(64)), ROUNDS if pace else 15
    run = launch(both_executors, name, batch, 8, hidden, pace, rounds, ranks=stages, timeout=300)
    theirs, ours = (max(times) for times in zip(*run, strict=True))
    cells = f"{theirs * 1000:.1f} | {ours * 1000:.1f} | {ours / theirs:.2f}"
    return f"| {name}, {stages} stages, hidden {hidden}{', paced' if pace else ''} | {cells} |"


def against_pytorch() -> list[str]:
    sizes = [(name, 2, 64, 32, None) for name in ("GPipe", "1F1B")]
    sizes += [(name, 4, 16, 8, None) for name in ("GPipe", "1F1B")]
    sizes += [(name, 4, 16, 8, None) for name in FIVE]
    sizes += [(name, 4, 16, 8, PACE) for name in FIVE]
    return [compared(*size) for size in tqdm(sizes, desc="against PyTorch")]


def main() -> None:
    """Measure, print and write the tables, each as soon as it is there."""
    pieces = "Pieces are micro-batches x time chunks x virtual stages."
    simulated = [
        "One update on 4 stages, forward passes and halves of backward passes paced to 20 ms, links as the column "
        f"says; the median of {ROUNDS}. {pieces}",
        "",
        f"On {describe_machine()}.",
        "",
        "| schedule | pieces | link, ms | simulated, ms | measured, ms | ratio |",
        "|---|--:|--:|--:|--:|--:|",
        *against_the_simulator(),
    ]
    write_section("Pipelines", "\n".join(simulated))
    slow, fast = against_naive()
    gains = [
        "The same batch, 320 ms of forward and 640 ms of backward work on each of 4 stages: how many times as fast as "
        f"1F1B, simulated and measured, and the share of the batch that the fullest stage holds. {pieces}",
        "",
        "| schedule | pieces | bubble | simulated, ms | measured, ms | faster, simulated | faster, measured | held |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *against_1f1b(),
        "",
        f"With 320 ms of backward work: naive {slow * 1000:.0f} ms, wavefront in 16 chunks {fast * 1000:.0f} ms: "
        f"{slow / fast:.2f} times as fast.",
    ]
    write_section("Pipelines against 1F1B", "\n".join(gains))
    executors = [
        "Forward and backward of one batch in 8 micro-batches; rounds alternate between the two executors, which do "
        "the same actions in the same order. Where it says so, forward passes and halves of backward passes are paced "
        "to 20 ms.",
        "",
        "| schedule | `torch.distributed.pipelining`, ms | ours, ms | ratio |",
        "|---|--:|--:|--:|",
        *against_pytorch(),
    ]
    write_section("Pipelines against PyTorch", "\n".join(executors))


if __name__ == "__main__":
    main()
