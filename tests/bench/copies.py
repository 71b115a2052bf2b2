"""How much of a copy from host memory hides behind computation, on a GPU: `python -m tests.bench.copies`.

Pinned memory alone hides nothing: a copy on the stream that computes waits for its turn there. On a second stream it
runs beside the computation.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn

from course_lib.data import copied_ahead
from tests.bench.table import describe_machine, write_section

UPDATES, ROUNDS = 20, 9
WAYS = ("computing only", "ordinary memory", "pinned, the same stream", "pinned, second stream")
TEXT = (
    f"Milliseconds of a forward and backward pass of one layer of 2048 units; before each, 64 MiB come from the host, "
    f"except in the first row. The median of {ROUNDS} rounds of {UPDATES}, in turn."
)


def milliseconds(way: str, layer: nn.LSTM, host: torch.Tensor) -> float:
    """Return the mean time of a pass."""
    waiting = [host.cuda() if way == "computing only" else host] * UPDATES
    torch.cuda.synchronize()
    began = time.monotonic()
    for inputs in copied_ahead(waiting, "cuda") if way == "pinned, second stream" else waiting:
        layer(inputs.to("cuda", non_blocking=True))[0].sum().backward()
    torch.cuda.synchronize()
    return 1000 * (time.monotonic() - began) / UPDATES


def main() -> None:
    """Measure, print and write the table."""
    if not torch.cuda.is_available():
        sys.exit("tests.bench.copies needs a GPU: there is nothing to copy to on this machine")
    layer, ordinary = nn.LSTM(2048, 2048).cuda(), torch.randn(32, 256, 2048)
    pinned = ordinary.pin_memory()
    memory = {way: ordinary if way == "ordinary memory" else pinned for way in WAYS}
    rounds = [[milliseconds(way, layer, memory[way]) for way in WAYS] for _ in range(ROUNDS + 1)][1:]
    times = [statistics.median(column) for column in zip(*rounds, strict=True)]
    rows = [f"| {way} | {each:.2f} | {each - times[0]:.2f} |" for way, each in zip(WAYS, times, strict=True)]
    head = ["| inputs | ms | not hidden, ms |", "|---|--:|--:|"]
    write_section("Copies (GPU)", "\n".join([TEXT, "", f"On {describe_machine()}.", "", *head, *rows]))


if __name__ == "__main__":
    main()
