"""The block times of a GPU, and how well they predict whole models: `python -m tests.benchmarks.gpu_times FILE`.

It writes the table to FILE, as `course_lib/one_device/h200.json` is; with `--models FILE` it reads it. Then it trains
models of 1, 2 and 4 layers, of sizes that lie between the measured ones, and compares an update as predicted with one
as measured.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from functools import partial
from itertools import product

import torch
from tqdm import tqdm

from course_lib import device
from course_lib.core.batch import Batch
from course_lib.core.model import SequenceModel, cross_entropy, lstm_model
from course_lib.core.strategy import Single
from course_lib.one_device.block_times import BlockTimes, read_block_times
from tests.benchmarks.calibration import PRECISIONS, calibrate, computing_in, save, seconds_in_a_row
from tests.benchmarks.table import table, write_section

WORDS = 10_000
SIZES = ((512, 96, 64), (768, 32, 100), (1024, 128, 128), (1536, 192, 24), (2048, 24, 50), (3072, 128, 32))


def tokens(sequences: int, steps: int) -> Batch:
    words = torch.randint(0, WORDS, (steps, sequences))
    lengths, mask = torch.full((sequences,), steps), torch.ones((steps, sequences), dtype=torch.bool)
    return Batch(words, words, lengths, mask).to(device())


def predicted(times: BlockTimes, model: SequenceModel, sequences: int, steps: int, precision: str) -> float:
    """An update: every block forward and backward, and Adam."""
    blocks = [times.of(block, sequences, steps, precision) for _, block in model.numbered()]
    update = times.update_seconds(sum(weight.numel() for weight in model.parameters()), "Adam", precision)
    return sum(block.forward + block.backward for block in blocks) + update


def measured(model: SequenceModel, batch: Batch, precision: str) -> float:
    """The same, updates in a row, each layer by itself, as data parallel training runs it."""
    autocast = torch.bfloat16 if precision == "bfloat16" else None
    strategy = Single(model, partial(torch.optim.Adam, lr=1e-3), cross_entropy, autocast=autocast)
    model.one_call = False
    with computing_in(precision):
        return seconds_in_a_row(lambda: strategy.step(batch), at_least=0.05)


def main() -> None:
    """Measure, write the table, and print how far off it is."""
    *options, file = sys.argv[1:]
    if "--models" in options:
        times = read_block_times(file)
    else:
        times = calibrate(precisions=PRECISIONS if torch.cuda.is_available() else ("float32",))
        save(times, file)
    rows, errors = [], defaultdict[str, list[float]](list)
    for (hidden, sequences, steps), layers in tqdm(list(product(SIZES, (1, 2, 4))), desc="models", disable=None):
        batch = tokens(sequences, steps)
        for precision in times.precisions:
            model = lstm_model(vocabulary=WORDS, hidden=hidden, layers=layers).to(device())
            guess, truth = predicted(times, model, sequences, steps, precision), measured(model, batch, precision)
            errors[precision].append(abs(guess / truth - 1))
            numbers = [f"{guess * 1000:.2f}", f"{truth * 1000:.2f}", f"{guess / truth - 1:+.0%}"]
            rows.append([hidden, layers, f"{sequences} x {steps}", precision, *numbers])
    said = [f"{name} {statistics.median(found):.1%} (at most {max(found):.0%})" for name, found in errors.items()]
    write_section(
        "Block times",
        "What the table predicts for an update of whole models with Adam, each layer by itself, and what was measured; "
        f"`python -m tests.benchmarks.gpu_times FILE`. Median errors: {', '.join(said)}.",
        table("hidden | layers | sequences x steps | precision | predicted, ms | measured, ms | error", rows),
    )


if __name__ == "__main__":
    main()
