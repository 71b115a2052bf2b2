"""Lessons 06 and 07: the executor against the simulator and PyTorch's own, wavefront against naive, the planner.

Computation is paced where ranks outnumber cores: messages and all-reduces are always real.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from tqdm import tqdm

from course_lib import launch, trace
from course_lib.data import AddingProblem, Batch, pad
from course_lib.lstm.loss import cross_entropy, squared_error
from course_lib.lstm.model import SequenceModel, lstm_model
from course_lib.planning.network import measure_all_reduce, measure_link
from course_lib.planning.placement import BlockCost, equal_count
from course_lib.planning.planner import Network, Plan, Work, plans
from course_lib.planning.schedules import SCHEDULES, Schedule, gpipe, naive, one_f_one_b, wavefront
from course_lib.planning.simulation import ActionCosts, makespan, measured, simulate
from course_lib.strategies import Hybrid, Pipeline
from course_lib.strategies.pipeline import Execution, Stage
from tests.bench.data_parallel import alternate
from tests.bench.table import describe_machine, write_section

sgd = partial(torch.optim.SGD, lr=0.01)
ROUNDS = 5


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
    run = launch(paced_steps, schedule, pace, ranks=len(schedule.stages))
    steps = zip(*run, strict=True)
    return statistics.median(
        makespan(measured(schedule, [span for spans in ranks for span in spans])) for ranks in steps
    )


def against_the_simulator() -> list[str]:
    rows = []
    for schedule in tqdm((gpipe(4, 8), one_f_one_b(4, 8), wavefront(4, 1, 16), wavefront(4, 2, 8)), desc="schedules"):
        pace = ActionCosts(0.02, 0.02)
        spent, simulated = paced_seconds(schedule, pace), simulate(schedule, pace).makespan
        pieces = f"{schedule.micro_batches} x {schedule.chunks}"
        cells = f"{simulated * 1000:.0f} | {spent * 1000:.0f} | {spent / simulated:.3f}"
        rows.append(f"| {schedule.name}, 4 stages | {pieces} | {cells} |")
    return rows


def against_naive() -> tuple[float, float]:
    """Seconds for the same batch, 0.32 s of work forward and as much backward on each of 4 stages."""
    whole = ActionCosts(0.32, 0.32)
    return tuple(paced_seconds(schedule, whole.split_over(schedule)) for schedule in (naive(4, 1), wavefront(4, 1, 16)))


class Turned(torch.autograd.Function):
    """Their micro-batches are cut along the first dimension, and their edges must be contiguous in both directions."""

    @staticmethod
    def forward(context, values: Tensor) -> Tensor:
        return values.transpose(0, 1).contiguous()

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return gradient.transpose(0, 1).contiguous()


class BatchFirst(nn.Module):
    def __init__(self, part: SequenceModel) -> None:
        super().__init__()
        self.part = part

    def forward(self, values: Tensor) -> Tensor:
        return Turned.apply(self.part(Turned.apply(values))[0])


def both_executors(name: str, batch: Batch, micro_batches: int, hidden: int) -> list[float]:
    """On a rank: median seconds of PyTorch's executor and of ours, forward and backward, on the same blocks."""
    torch.manual_seed(0)
    rank, stages = dist.get_rank(), dist.get_world_size()
    model = lstm_model(features=2, hidden=hidden, layers=6, outputs=1)
    placement = equal_count(len(model), stages)
    stage = Stage.of(model, placement, rank, range(stages), squared_error)
    ours = SCHEDULES[name](stages, micro_batches)
    wanted = torch.stack([batch.targets, batch.mask.to(batch.targets)]).permute(2, 1, 0).contiguous()

    def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
        return ((outputs.squeeze(-1) - wanted[..., 0]) * wanted[..., 1]).square().sum() / batch.count

    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[name]
    their_stage = PipelineStage(BatchFirst(stage.part), rank, stages, torch.device("cpu"))
    theirs = kind(their_stage, micro_batches, loss_fn=loss, scale_grads=False)
    inputs = [batch.inputs.transpose(0, 1).contiguous()] if rank == 0 else []
    targets = {"target": wanted} if rank == stages - 1 else {}

    def their_step() -> None:
        dist.barrier()
        theirs.step(*inputs, **targets)

    def our_step() -> None:
        dist.barrier()
        Execution(stage, ours, batch, batch.mask.sum(), {}).run()

    return alternate([their_step, our_step], rounds=15)


def against_pytorch() -> list[str]:
    rows = []
    for name, stages, hidden, steps in (
        ("gpipe", 2, 64, 32),
        ("1f1b", 2, 64, 32),
        ("gpipe", 4, 16, 8),
        ("1f1b", 4, 16, 8),
    ):
        batch = AddingProblem(64, (steps, steps)).batch(range(64))
        run = launch(both_executors, name, batch, 8, hidden, ranks=stages, timeout=300)
        theirs, ours = (max(times) for times in zip(*run, strict=True))
        cells = f"{theirs * 1000:.1f} | {ours * 1000:.1f} | {ours / theirs:.2f}"
        rows.append(f"| {name}, {stages} stages, 8 micro-batches, hidden {hidden} | {cells} |")
    return rows


def big_model() -> SequenceModel:
    return lstm_model(vocabulary=60_000, hidden=32, layers=6, outputs=8)


def words(sequences: int = 16, steps: int = 16) -> Batch:
    texts = [torch.randint(0, 8, (steps + 1,), generator=torch.Generator().manual_seed(s)) for s in range(sequences)]
    return pad([text[:-1] for text in texts], [text[1:] for text in texts])


def hybrid_seconds(options: dict, batch: Batch, repeats: int = 3) -> float:
    strategy = Hybrid(big_model(), sgd, cross_entropy, **options)
    share, times = strategy.share(batch), []
    for _ in range(repeats + 1):
        dist.barrier()
        began = time.monotonic()
        strategy.step(share)
        times.append(time.monotonic() - began)
    return statistics.median(times[1:])


def plan_seconds(plan: Plan, batch: Batch) -> float:
    options = {"replicas": plan.replicas, "schedule": plan.schedule, "placement": plan.placement, "pace": plan.costs}
    return max(launch(hybrid_seconds, options, batch, ranks=plan.replicas * plan.stages))


def planner() -> list[str]:
    batch = words()
    work = Work.of(big_model(), batch, [BlockCost(0.02, 0), *[BlockCost(0.16, 0)] * 6, BlockCost(0.02, 0)])
    network = Network.flat(measure_link(sizes=(4, 40_000, 4_000_000)), measure_all_reduce(4))
    overhead = max(launch(hybrid_seconds, {"replicas": 1}, batch, ranks=4)) / 14
    candidates = plans(work, 4, network, micro_batches=(1, 2, 4), chunks=(2, 4), overhead=overhead)
    spent = [plan_seconds(plan, batch) for plan in tqdm(candidates, desc="plans")]
    rows = [
        f"| {plan.replicas} x {plan.stages}, {plan.schedule.name} {plan.schedule.micro_batches} x "
        f"{plan.schedule.chunks} | {plan.seconds * 1000:.0f} | {seconds * 1000:.0f} | {seconds / min(spent):.2f} |"
        for plan, seconds in zip(candidates, spent, strict=True)
    ]
    return rows


def main() -> None:
    """Measure, print and write the tables."""
    slow, fast = against_naive()
    pipeline = [
        f"One update, every action paced to 20 ms; the median of {ROUNDS}. Pieces are micro-batches x time chunks.",
        "",
        f"On {describe_machine()}.",
        "",
        "| schedule | pieces | simulated, ms | measured, ms | ratio |",
        "|---|--:|--:|--:|--:|",
        *against_the_simulator(),
        "",
        f"The same batch on 4 stages: naive {slow * 1000:.0f} ms, wavefront in 16 chunks {fast * 1000:.0f} ms: "
        f"{slow / fast:.2f} times as fast.",
        "",
        "Forward and backward of one batch, no pace; rounds alternate between the two executors.",
        "",
        "| schedule | `torch.distributed.pipelining`, ms | ours, ms | ratio |",
        "|---|--:|--:|--:|",
        *against_pytorch(),
    ]
    write_section("Pipelines", "\n".join(pipeline))
    meshes = [
        "Every plan for 4 ranks, fastest prediction first; paced computation, real messages and all-reduces.",
        "",
        f"On {describe_machine()}.",
        "",
        "| mesh, schedule, pieces | predicted, ms | measured, ms | against the best measured |",
        "|---|--:|--:|--:|",
        *planner(),
    ]
    write_section("Meshes", "\n".join(meshes))


if __name__ == "__main__":
    main()
