"""What overlaps over NCCL on four ranks: DDP's buckets, FSDP's prefetching, and pipelines against their simulation.

    python -m course_lib.launcher.jobs.shared_gpu python -m tests.benchmarks.nccl_steps

needs `course_lib.launcher.jobs.shared_gpu` only where ranks share a GPU. The tables say so where they do.
"""

from __future__ import annotations

import statistics
from functools import partial

import torch
import torch.distributed as dist

from course_lib import device, launch, trace
from course_lib.core.adding import AddingProblem
from course_lib.core.model import SequenceModel, lstm_model, squared_error
from course_lib.core.strategy import Strategy
from course_lib.data_parallel.ddp import DDP
from course_lib.pipeline.named_schedules import make_schedule
from course_lib.pipeline.pipeline import Pipeline
from course_lib.pipeline.schedule import Schedule
from course_lib.pipeline.simulation import ActionCosts, makespan, measured, simulate
from course_lib.runtime import machine
from course_lib.sharding.fsdp import FSDP, sharded_modules
from tests.benchmarks.table import alternate, table, write_section

RANKS, LAYERS, STEPS, ROUNDS = 4, 8, 32, 15
HIDDEN = 1024
BATCH = AddingProblem(128, (STEPS, STEPS)).batch(range(128))
adam = partial(torch.optim.Adam, lr=0.001)
SCHEDULES = [(name, 8, 1) for name in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")] + [("wavefront", 2, 4)]


def model() -> SequenceModel:
    return lstm_model(features=2, hidden=HIDDEN, layers=LAYERS, outputs=1)


class SumsAfterwards(DDP):
    """Backward first; then the gradients, one after another, with nothing left to compute meanwhile."""

    sends = True

    def forward(self, inputs, states):
        with self.parallel.no_sync():
            return super().forward(inputs, states)

    def reduce_gradients(self) -> None:
        if self.sends:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.ranks


class KeepsGradients(SumsAfterwards):
    """Does not send its gradients at all: what computing takes alone."""

    sends = False


def prefetching(ahead: int | None, **options) -> Strategy:
    """FSDP that is told to gather so many blocks ahead, or is left to itself."""
    strategy = FSDP(model(), adam, squared_error, **options)
    blocks = [block for block in sharded_modules(strategy.model) if block is not strategy.model]
    for place, block in enumerate(blocks if ahead is not None else []):
        block.set_modules_to_forward_prefetch(blocks[place + 1 : place + 1 + ahead])
        block.set_modules_to_backward_prefetch(blocks[max(0, place - ahead) : place][::-1])
    return strategy


def data_parallel() -> list[float]:
    return _times([kind(model(), adam, squared_error) for kind in (KeepsGradients, SumsAfterwards, DDP)])


def sharded() -> list[float]:
    waits = prefetching(None)
    for block in sharded_modules(waits.model)[2:]:  # a block is gathered only when the one before it is done
        block.register_forward_pre_hook(lambda *_: machine.wait_for_gpu())
        block.register_full_backward_pre_hook(lambda *_: machine.wait_for_gpu())
    return _times([waits, prefetching(None), prefetching(2), prefetching(None, reshard_after_forward=False)])


def _times(strategies: list[Strategy]) -> list[float]:
    share = strategies[0].share(BATCH).to(device())
    with trace.paused():
        return alternate([partial(strategy.step, share) for strategy in strategies], ROUNDS)


def pipelined(schedule: Schedule) -> list[list[trace.Span]]:
    """The spans of each of several training steps, after two that warm up."""
    torch.manual_seed(0)
    strategy, steps = Pipeline(model(), adam, squared_error, schedule=schedule), []
    for _ in range(ROUNDS + 2):
        dist.all_reduce(torch.zeros(1))
        trace.recorder.spans.clear()
        strategy.step(BATCH)
        steps.append(list(trace.recorder.spans))
    return steps[2:]


def against_simulation(schedule: Schedule) -> tuple[float, float, float]:
    """Seconds of a step as measured, as simulated with the median times of its own actions, and its bubble."""
    run = launch(pipelined, schedule, ranks=RANKS, timeout=240)
    steps = [measured(schedule, [span for spans in ranks for span in spans]) for ranks in zip(*run, strict=True)]

    def typical(kind: str, split: bool = False) -> list[float]:
        """The median time of an action, for each stage."""
        found: list[list[float]] = [[] for _ in schedule.stages]
        for each in (each for step in steps for each in step if each.action.kind == kind):
            if kind == "F" or ((each.stage, each.action.piece) in schedule.split) == split:
                found[each.stage].append(each.end - each.start)
        return [statistics.median(times) if times else 0.0 for times in found]

    costs = ActionCosts(typical("F"), typical("B"), 0.0, typical("B", True), typical("W", True))
    found = simulate(schedule, costs)
    return statistics.median(makespan(step) for step in steps), found.makespan, found.bubble


def main() -> None:
    """Measure, print and write the tables."""
    alone, *sent = launch(data_parallel, ranks=RANKS, timeout=240)[0]
    updates = [["gradients stay on the rank", f"{alone * 1e3:.1f}", ""]]
    ways = ("summed after the backward pass, tensor by tensor", "DDP: summed during it, in buckets")
    for way, spent in zip(ways, sent, strict=True):
        updates.append([way, f"{spent * 1e3:.1f}", f"{(spent - alone) * 1e3:.1f}"])
    times = launch(sharded, ranks=RANKS, timeout=240)[0]
    ways = ("each block gathered when it is needed", "left to PyTorch", "told to gather two blocks ahead", "kept whole")
    fsdp = [[way, f"{spent * 1e3:.1f}", f"{times[0] / spent:.2f} x"] for way, spent in zip(ways, times, strict=True)]
    pipelines = []
    for name, pieces, chunks in SCHEDULES:
        spent, simulated, bubble = against_simulation(make_schedule(name, RANKS, pieces, chunks))
        numbers = [f"{simulated * 1e3:.1f}", f"{spent * 1e3:.1f}", f"{spent / simulated:.2f}", f"{bubble:.0%}"]
        pipelines.append([name, f"{pieces} x {chunks}", *numbers])
    shared = " sharing one GPU" if machine.gpus() < RANKS else ""
    where = f"{RANKS} ranks{shared}, {LAYERS} layers of {HIDDEN}, 128 sequences of {STEPS} steps, NCCL"
    write_section(
        "NCCL",
        f"{where} {'.'.join(map(str, machine.nccl_version()))}; the median of {ROUNDS} rounds.",
        table("update | ms | more than the first row", updates),
        table("FSDP | ms | against the first", fsdp),
        table("schedule | micro-batches x chunks | simulated, ms | measured, ms | ratio | bubble", pipelines),
    )


if __name__ == "__main__":
    main()
