"""The block times of a GPU, and how well they predict whole models: `python -m tests.bench.gpu_times FILE`.

It writes the table to FILE, as `course_lib/planning/h200.json` is; with `--models FILE` it reads it. Then it trains
models of 1, 2 and 4 layers, of sizes that lie between the measured ones, and prints predicted beside measured
milliseconds of an update.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial

import torch
from tqdm import tqdm

from course_lib import device
from course_lib.data import Batch
from course_lib.lstm.model import SequenceModel, cross_entropy, lstm_model
from course_lib.planning.block_times import BlockTimes, read_block_times
from course_lib.strategies import Single
from tests.bench.calibration import PRECISIONS, calibrate, computing_in, save, seconds_in_a_row
from tests.bench.table import describe_machine

WORDS = 10_000
ON_A_GPU = ((512, 96, 64), (768, 32, 100), (1024, 128, 128), (1536, 192, 24), (2048, 24, 50), (3072, 128, 32))
ON_A_CPU = ((32, 16, 20), (128, 12, 12))
LIMIT = 400.0  # seconds: what is not measured by then is left out


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


def starting_an_action() -> float:
    """What a forward or a backward pass costs that has next to nothing to do."""
    model = lstm_model(features=2, hidden=16, layers=1, outputs=1).to(device())
    inputs = torch.zeros((1, 1, 2), device=device())
    return seconds_in_a_row(lambda: model(inputs)[0].sum().backward()) / 2


def main() -> None:
    """Measure, write the table, and print how far off it is."""
    began, on_gpu = time.monotonic(), torch.cuda.is_available()
    *options, file = sys.argv[1:]
    if "--models" in options:
        times = read_block_times(file)
    else:
        times = calibrate(precisions=PRECISIONS if on_gpu else ("float32",))
        save(times, file)
    print(f"On {describe_machine()}.\nThe table took {time.monotonic() - began:.0f} s.\n")
    print("| hidden | layers | sequences x steps | precision | predicted, ms | measured, ms | error |")
    print("|--:|--:|--:|---|--:|--:|--:|")
    errors: dict[str, list[float]] = {precision: [] for precision in times.precisions}
    for hidden, sequences, steps in tqdm(ON_A_GPU if on_gpu else ON_A_CPU, desc="models", disable=None):
        batch = tokens(sequences, steps)
        for layers in (1, 2, 4):
            for precision in times.precisions:
                if time.monotonic() - began > LIMIT:
                    continue
                model = lstm_model(vocabulary=WORDS, hidden=hidden, layers=layers).to(device())
                guess = predicted(times, model, sequences, steps, precision)
                truth = measured(model, batch, precision)
                errors[precision].append(abs(guess / truth - 1))
                sizes = f"{hidden} | {layers} | {sequences} x {steps} | {precision}"
                print(f"| {sizes} | {guess * 1000:.2f} | {truth * 1000:.2f} | {guess / truth - 1:+.0%} |", flush=True)
    every = [error for found in errors.values() for error in found]
    for precision, found in [*errors.items(), ("all", every)]:
        if found:
            print(
                f"{precision}: {len(found)} models, median error {statistics.median(found):.1%}, most {max(found):.1%}"
            )
    print(f"starting an action: {starting_an_action() * 1000:.2f} ms\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
