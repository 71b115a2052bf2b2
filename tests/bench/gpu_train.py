"""`course train` against a bare PyTorch script that does the same, on one GPU: `python -m tests.bench.gpu_train`.

Both train 4 LSTM layers on sequences of 128 steps, 128 in an update, with Adam and clipped gradients, read every batch
from the same data, and keep every loss; ours also has its options checked, and shows a bar. They run in turn, and
what is compared is the steady part of each run, by the device's clock, and the most memory it had.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import statistics
import time
from functools import partial

import torch
from torch import nn

from course_lib import device, launch
from course_lib.data import AddingProblem, ShardedBatches
from course_lib.training.job import train_job
from course_lib.training.loop import epochs
from course_lib.training.settings import Settings
from tests.bench.table import describe_machine, write_section

LAYERS, STEPS, SEQUENCES = 4, 128, 128
UPDATES, WARM_UP, ROUNDS = 60, 15, 3
ON_GPU = torch.cuda.is_available()
SIZES = (1024, 2048) if ON_GPU else (8,)
TEXT = (
    f"Tokens per second of {LAYERS} layers, {SEQUENCES} sequences of {STEPS} steps, with Adam and clipping, on one "
    "rank: a bare script with one call of cuDNN for all layers, another with a call for each, and `course train`, "
    f"which chooses by the width and the precision; the median of {ROUNDS} runs of {UPDATES - WARM_UP} updates, in "
    "turn. The ratio is to the faster bare script. Memory is the most that PyTorch had, in MiB."
)
HEAD = (
    "| hidden | precision | strategy | bare, one call | bare, one per layer | `course train` | ratio "
    "| MiB, one call | MiB, one per layer | MiB, `course train` |",
    "|--:|---|---|--:|--:|--:|--:|--:|--:|--:|",
)


def data() -> AddingProblem:
    """All sequences are as long."""
    return AddingProblem(2_000, (STEPS, STEPS))


class BareModel(nn.Module):
    """What one writes without the course. A call for all layers, or one for each: what is faster, ours must match."""

    def __init__(self, hidden: int, calls: int) -> None:
        super().__init__()
        self.way_in = nn.Linear(2, hidden)
        self.lstms = nn.ModuleList(nn.LSTM(hidden, hidden, LAYERS // calls) for _ in range(calls))
        self.way_out = nn.Linear(hidden, 1)
        with torch.no_grad():  # forget gates begin open, as ours do: a GPU is faster where gradients have vanished
            for name, bias in self.named_parameters():
                if "bias_ih" in name or "bias_hh" in name:
                    bias[hidden : 2 * hidden] = float("bias_ih" in name)

    def forward(self, inputs):
        outputs = self.way_in(inputs)
        for lstm in self.lstms:
            outputs, _ = lstm(outputs)
        return self.way_out(outputs)


def bare(strategy: str, hidden: int, precision: str, calls: int) -> dict[str, float]:
    """The bare script: a training loop, and nothing else."""
    torch.manual_seed(0)
    model = BareModel(hidden, calls).to(device())
    wrapped = nn.parallel.DistributedDataParallel(model) if strategy == "ddp" else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    half = precision == "bf16"
    dataset, losses, times = data(), [], []
    for batch in epochs(dataset, ShardedBatches(len(dataset), SEQUENCES)):
        batch = batch.to(device())
        optimizer.zero_grad()
        with torch.autocast(device().type, torch.bfloat16) if half else contextlib.nullcontext():
            answers = wrapped(batch.inputs).float().squeeze(-1)
            loss = nn.functional.mse_loss(answers[-1], batch.targets[-1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        times.append(_mark())
        if len(losses) == UPDATES:
            return _measured(times)
    raise AssertionError("epochs have no end")


def ours(strategy: str, hidden: int, precision: str) -> dict[str, float]:
    """`course train`'s job, with an optimizer that also looks at the clock."""
    times = []

    class Timed(torch.optim.Adam):
        def step(self, closure=None):
            super().step(closure)
            times.append(_mark())

    plain, torch.optim.Adam = torch.optim.Adam, Timed
    settings = Settings(
        strategy,
        data="tests.bench.gpu_train:data",
        updates=UPDATES,
        batch=SEQUENCES,
        hidden=hidden,
        layers=LAYERS,
        learning_rate=0.001,
        precision=precision,
    )
    try:
        train_job(settings, show=lambda progress: None)
    finally:
        torch.optim.Adam = plain
    return _measured(times)


def _mark():
    """A moment on the device's own clock, without waiting for it."""
    if not ON_GPU:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _measured(times: list) -> dict[str, float]:
    began, ended = times[WARM_UP], times[-1]
    if ON_GPU:
        torch.cuda.synchronize()
    seconds = began.elapsed_time(ended) / 1000 if ON_GPU else ended - began
    memory = torch.cuda.max_memory_allocated() if ON_GPU else 0
    return {"tokens per second": STEPS * SEQUENCES * (len(times) - 1 - WARM_UP) / seconds, "memory": memory}


def measure(hidden: int, precision: str, strategy: str) -> list[list[dict]]:
    """The runs of both bare scripts and of ours, made in turn."""
    contenders = [partial(bare, strategy, hidden, precision, calls) for calls in (1, LAYERS)]
    contenders.append(partial(ours, strategy, hidden, precision))

    def in_turn() -> list[list[dict]]:
        return [[_run(contender) for contender in contenders] for _ in range(ROUNDS)]

    return [list(runs) for runs in zip(*launch(in_turn, ranks=1, timeout=None)[0], strict=True)]


def _run(contender) -> dict[str, float]:
    gc.collect()
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return contender()


def _speed(runs) -> float:
    return statistics.median(run["tokens per second"] for run in runs)


def _memory(runs) -> float:
    return max(run["memory"] for run in runs) / 2**20


def main() -> None:
    """Measure, print and write the table."""
    lines = []
    for hidden, precision, strategy in itertools.product(SIZES, ("fp32", "bf16"), ("single", "ddp")):
        measured = measure(hidden, precision, strategy)
        one, each, course = map(_speed, measured)
        memory = " | ".join(f"{_memory(runs):,.0f}" for runs in measured)
        speeds = f"{one:,.0f} | {each:,.0f} | {course:,.0f} | {course / max(one, each):.3f}"
        lines.append(f"| {hidden} | {precision} | {strategy} | {speeds} | {memory} |")
        print(lines[-1], flush=True)
    if ON_GPU:
        write_section("course train (GPU)", "\n".join([TEXT, "", f"On {describe_machine()}.", "", *HEAD, *lines]))


if __name__ == "__main__":
    main()
