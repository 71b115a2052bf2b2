"""One update, waited for, on one GPU: `Strategy.step` against bare PyTorch. `python -m tests.bench.gpu_step`

`tests.bench.gpu_train` lets the host run ahead of the GPU, as training does. Here every update is waited for, so that
what the host spends in `step` shows.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from functools import partial

import torch
from torch import nn

from course_lib import device, launch, trace
from course_lib.data import Batch
from course_lib.lstm.model import lstm_model, squared_error
from course_lib.strategies import Single
from tests.bench.gpu_train import LAYERS, ON_GPU, SEQUENCES, STEPS, BareModel, data
from tests.bench.table import describe_machine, write_section

SIZES = (256, 512, 1024, 2048) if ON_GPU else (8,)
ROUNDS, WARM_UP = (40, 8) if ON_GPU else (3, 1)
TEXT = (
    f"Milliseconds of an update that is waited for: {LAYERS} layers, {SEQUENCES} sequences of {STEPS} steps, Adam, "
    f"clipping; the median of {ROUNDS} rounds in which all four take turns. The ratios are the faster bare loop's time "
    "over ours."
)
HEAD = (
    "| hidden | precision | bare, one call | bare, one per layer | `step` | ratio | `step`, spans recorded | ratio |",
    "|--:|---|--:|--:|--:|--:|--:|--:|",
)


class Bare:
    """The shortest training step."""

    def __init__(self, hidden: int, half: bool, calls: int) -> None:
        self.model = BareModel(hidden, calls).to(device())
        self.optimizer, self.half = torch.optim.Adam(self.model.parameters(), lr=0.001), half

    def step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(device().type, torch.bfloat16) if self.half else contextlib.nullcontext():
            answers = self.model(batch.inputs).float().squeeze(-1)
            loss = nn.functional.mse_loss(answers[-1], batch.targets[-1])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def ours(hidden: int, half: bool) -> Single:
    adam, autocast = partial(torch.optim.Adam, lr=0.001), torch.bfloat16 if half else None
    model = lstm_model(features=2, hidden=hidden, layers=LAYERS, outputs=1)
    return Single(model, adam, squared_error, clip=1.0, autocast=autocast)


def measure(hidden: int, half: bool) -> list[float]:
    """Median seconds of an update: bare with one call, bare with a call per layer, ours, and ours recorded."""
    batch = data().batch(range(SEQUENCES)).to(device())
    steps = [Bare(hidden, half, calls).step for calls in (1, LAYERS)]
    strategy = ours(hidden, half)

    def unrecorded(batch: Batch) -> None:
        with trace.paused():
            strategy.step(batch)

    steps += [unrecorded, strategy.step]
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(WARM_UP + ROUNDS):
        for step, taken in zip(steps, times, strict=True):
            taken.append(_waited(step, batch))
    return [statistics.median(taken[WARM_UP:]) for taken in times]


def _waited(step, batch: Batch) -> float:
    if ON_GPU:
        torch.cuda.synchronize()
    began = time.perf_counter()
    step(batch)
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Measure, print and write the table."""
    lines = []
    for hidden in SIZES:
        for half in (False, True):
            one, each, alone, recorded = launch(measure, hidden, half, ranks=1, timeout=None)[0]
            best = min(one, each)
            times = f"{one * 1e3:.2f} | {each * 1e3:.2f} | {alone * 1e3:.2f} | {best / alone:.3f} | "
            times += f"{recorded * 1e3:.2f} | {best / recorded:.3f}"
            lines.append(f"| {hidden} | {'bf16' if half else 'fp32'} | {times} |")
            print(lines[-1], flush=True)
    if ON_GPU:
        write_section("An update (GPU)", "\n".join([TEXT, "", f"On {describe_machine()}.", "", *HEAD, *lines]))


if __name__ == "__main__":
    main()
