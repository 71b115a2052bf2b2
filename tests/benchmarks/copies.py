"""How much of a copy from host memory hides behind computation, on a GPU: `python -m tests.benchmarks.copies`.

Pinned memory alone hides nothing: a copy on the stream that computes waits for its turn there. On a second stream it
runs beside the computation.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from course_lib.core.batch import copied_ahead
from tests.benchmarks.table import alternate, table, write_section

UPDATES, ROUNDS = 20, 9
WAYS = ("computing only", "ordinary memory", "pinned, the same stream", "pinned, second stream")
ABOUT = (
    "Milliseconds of a forward and backward pass of one layer of 2048 units; before each, 64 MiB come from the host, "
    f"except in the first row. The median of {ROUNDS} rounds of {UPDATES}, in turn."
)


def passes(way: str, layer: nn.LSTM, host: torch.Tensor) -> None:
    """Queue forward and backward passes whose inputs come from the host, except when `way` is computing only."""
    waiting = [host.cuda() if way == "computing only" else host] * UPDATES
    for inputs in copied_ahead(waiting, "cuda") if way == "pinned, second stream" else waiting:
        layer(inputs.to("cuda", non_blocking=True))[0].sum().backward()


def main() -> None:
    """Measure, print and write the table."""
    layer, ordinary = nn.LSTM(2048, 2048).cuda(), torch.randn(32, 256, 2048)
    pinned = ordinary.pin_memory()
    work = [partial(passes, way, layer, ordinary if way == "ordinary memory" else pinned) for way in WAYS]
    times = [1000 * seconds / UPDATES for seconds in alternate(work, ROUNDS)]
    rows = [[way, f"{each:.2f}", f"{each - times[0]:.2f}"] for way, each in zip(WAYS, times, strict=True)]
    write_section("Copies (GPU)", ABOUT, table("inputs | ms | not hidden, ms", rows))


if __name__ == "__main__":
    main()
