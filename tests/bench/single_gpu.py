"""Lesson 01's job on one GPU, beside two bare cuDNN loops: real steps per second in float32 and bfloat16.

All train four LSTM layers on the adding problem's shapes with Adam. The bare loops are what one writes without the
course, and nothing else: `nn.LSTM(layers=4)`, one call for all layers, or four of one layer, called in turn. Which of
them is faster depends on size and precision; the course's model is to be as fast as the better one.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from tqdm import tqdm

from course_lib import device
from course_lib.data import AddingProblem, Batch
from course_lib.lstm.model import lstm_model, squared_error
from course_lib.strategies import Single
from tests.bench.table import describe_machine, write_section

LAYERS, STEPS, SEQUENCES = 4, 128, 128
ROUNDS = 40


class Bare:
    """The shortest training step there is, with `calls` calls for the layers."""

    def __init__(self, hidden: int, precision: torch.dtype | None, calls: int) -> None:
        self.way_in = nn.Linear(2, hidden).to(device())
        self.lstms = [nn.LSTM(hidden, hidden, LAYERS // calls).to(device()) for _ in range(calls)]
        self.way_out = nn.Linear(hidden, 1).to(device())
        modules = nn.ModuleList([self.way_in, *self.lstms, self.way_out])
        self.optimizer = torch.optim.Adam(modules.parameters(), lr=0.01)
        self.precision = precision

    def step(self, batch) -> None:
        self.optimizer.zero_grad()
        autocast = torch.autocast("cuda", dtype=self.precision) if self.precision else contextlib.nullcontext()
        with autocast:
            outputs = self.way_in(batch.inputs)
            for lstm in self.lstms:
                outputs, _ = lstm(outputs)
            answers = self.way_out(outputs).float().squeeze(-1)
            loss = nn.functional.mse_loss(answers[-1], batch.targets[-1])
        loss.backward()
        self.optimizer.step()


def ours(hidden: int, precision: torch.dtype | None) -> Single:
    model = lstm_model(features=2, hidden=hidden, layers=LAYERS, outputs=1)
    return Single(model, partial(torch.optim.Adam, lr=0.01), squared_error, autocast=precision)


def alternate(contenders: Sequence[Bare | Single], batch: Batch) -> list[float]:
    """The median seconds of one update of each. They take turns at every update, so that noise hits them all."""
    times = [[_seconds(contender, batch) for contender in contenders] for _ in range(ROUNDS + 3)][3:]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def _seconds(contender: Bare | Single, batch: Batch) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    contender.step(batch)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Measure, print and write the table."""
    if not torch.cuda.is_available():
        print("One GPU: there is none on this machine, so its table stays as it is.")
        return
    batch = AddingProblem(SEQUENCES, (STEPS, STEPS)).batch(range(SEQUENCES)).to(device())
    rows = []
    for hidden in tqdm((256, 512, 1024, 2048), desc="hidden sizes"):
        for name, precision in (("float32", None), ("bfloat16", torch.bfloat16)):
            contenders = [Bare(hidden, precision, 1), Bare(hidden, precision, LAYERS), ours(hidden, precision)]
            stacked, apart, course = (STEPS * SEQUENCES / seconds for seconds in alternate(contenders, batch))
            ratio = course / max(stacked, apart)
            rows.append(f"| {hidden} | {name} | {stacked:,.0f} | {apart:,.0f} | {course:,.0f} | {ratio:.2f} |")
    lines = [
        f"Steps per second of {LAYERS} layers, {SEQUENCES} sequences of {STEPS} steps, forward, backward and Adam; "
        f"the median of {ROUNDS} updates of each, in turn.",
        "",
        f"On {describe_machine()}.",
        "",
        "| hidden | precision | bare, one call for all | bare, a call for each | lesson 01's job | of the better |",
        "|--:|---|--:|--:|--:|--:|",
        *rows,
    ]
    write_section("One GPU", "\n".join(lines))


if __name__ == "__main__":
    main()
