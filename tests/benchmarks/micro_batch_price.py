"""What cutting a batch costs an LSTM and a GPT on this machine's GPU: `python -m tests.benchmarks.micro_batch_price`.

A layer, forward and backward: 128 sequences of 128 steps at once, and the same in micro-batches. The price is the time
of all micro-batches one after another, over that of the whole batch.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from course_lib import device
from course_lib.transformer.gpt import GPTBlock
from tests.benchmarks.calibration import PRECISIONS, autocast_for, computing_in, seconds_in_a_row
from tests.benchmarks.table import table, write_section

SEQUENCES, STEPS = 128, 128
CUTS = (2, 8, 32)


def in_pieces(layer: nn.Module, inputs: torch.Tensor, pieces: int, precision: str) -> None:
    """Run a forward and a backward pass of each micro-batch; inputs are (steps, sequences, width)."""
    for piece in inputs.chunk(pieces, dim=1):
        with autocast_for(precision):
            outputs, _ = layer(piece)
        outputs.sum().backward()


def row(width: int, precision: str) -> list[object]:
    """Return the milliseconds of the whole batch and the prices of its cuts, for both kinds of layer."""
    cells: list[object] = [precision, width]
    for layer in (nn.LSTM(width, width), GPTBlock(width)):
        layer = layer.to(device())
        inputs = torch.randn(STEPS, SEQUENCES, width, device=device(), requires_grad=True)
        with computing_in(precision):
            work = [partial(in_pieces, layer, inputs, pieces, precision) for pieces in (1, *CUTS)]
            whole, *cut = (seconds_in_a_row(each, at_least=0.05) for each in work)
        cells += [f"{1000 * whole:.2f}", *(f"{seconds / whole:.2f}" for seconds in cut)]
    return cells


def main() -> None:
    """Measure and write the table."""
    sizes = [(width, precision) for precision in PRECISIONS for width in (256, 1024)] + [(4096, "bfloat16")]
    head = " | ".join(f"{kind}, ms | " + " | ".join(f"x {cut}" for cut in CUTS) for kind in ("LSTM", "GPT"))
    write_section(
        "The price of micro-batches, LSTM and GPT",
        f"One layer, forward and backward, {SEQUENCES} sequences of {STEPS} steps at once (ms), and all micro-batches "
        "one after another as a multiple of that. `tf32` is PyTorch's default: TF32 in cuDNN's LSTM, float32 in a "
        "GPT's matrices.",
        table(f"precision | width | {head}", [row(*size) for size in sizes]),
    )


if __name__ == "__main__":
    main()
