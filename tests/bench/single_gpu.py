"""Lesson 01's job on one GPU, beside a bare cuDNN loop: real steps per second in float32 and bfloat16.

Both train four LSTM layers on the adding problem's shapes with Adam. The bare loop is what one writes without the
course: `nn.LSTM(layers=4)`, a linear layer, and nothing else.
"""

from __future__ import annotations

import contextlib
import statistics
from functools import partial

import torch
from torch import nn
from tqdm import tqdm

from course_lib import device
from course_lib.data import AddingProblem
from course_lib.lstm.loss import squared_error
from course_lib.lstm.model import lstm_model
from course_lib.strategies import Single
from course_lib.training.loop import seconds_per_update
from tests.bench.table import describe_machine, write_section

LAYERS, STEPS, SEQUENCES = 4, 128, 128
ROUNDS = 5


class Bare:
    """The shortest training step there is."""

    def __init__(self, hidden: int, precision: torch.dtype | None) -> None:
        self.way_in = nn.Linear(2, hidden).to(device())
        self.lstm = nn.LSTM(hidden, hidden, LAYERS).to(device())
        self.way_out = nn.Linear(hidden, 1).to(device())
        parameters = [*self.way_in.parameters(), *self.lstm.parameters(), *self.way_out.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=0.01)
        self.precision = precision

    def step(self, batch) -> None:
        self.optimizer.zero_grad()
        autocast = torch.autocast("cuda", dtype=self.precision) if self.precision else contextlib.nullcontext()
        with autocast:
            answers = self.way_out(self.lstm(self.way_in(batch.inputs))[0]).float().squeeze(-1)
            loss = nn.functional.mse_loss(answers[-1], batch.targets[-1])
        loss.backward()
        self.optimizer.step()


def ours(hidden: int, precision: torch.dtype | None) -> Single:
    model = lstm_model(features=2, hidden=hidden, layers=LAYERS, outputs=1)
    return Single(model, partial(torch.optim.Adam, lr=0.01), squared_error, autocast=precision)


def main() -> None:
    """Measure, print and write the table."""
    if not torch.cuda.is_available():
        print("One GPU: there is none on this machine, so its table stays as it is.")
        return
    batch = AddingProblem(SEQUENCES, (STEPS, STEPS)).batch(range(SEQUENCES)).to(device())
    rows = []
    for hidden in tqdm((256, 512, 1024, 2048), desc="hidden sizes"):
        for name, precision in (("float32", None), ("bfloat16", torch.bfloat16)):
            contenders = [Bare(hidden, precision), ours(hidden, precision)]
            times = [[seconds_per_update(each, batch) for each in contenders] for _ in range(ROUNDS)]
            bare, course = (STEPS * SEQUENCES / statistics.median(column) for column in zip(*times, strict=True))
            rows.append(f"| {hidden} | {name} | {bare:,.0f} | {course:,.0f} | {course / bare:.2f} |")
    lines = [
        f"Steps per second of {LAYERS} layers, {SEQUENCES} sequences of {STEPS} steps, forward, backward and Adam; "
        f"the median of {ROUNDS} rounds that alternate between the two.",
        "",
        f"On {describe_machine()}.",
        "",
        "| hidden | precision | bare `nn.LSTM(layers=4)` | lesson 01's job | ratio |",
        "|--:|---|--:|--:|--:|",
        *rows,
    ]
    write_section("One GPU", "\n".join(lines))


if __name__ == "__main__":
    main()
