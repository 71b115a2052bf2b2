"""Measure a table of block times on this device, as `course_lib/one_device/h200.json` is.

Kernel launches run ahead of the GPU, and synchronizing after every call would time the synchronization too. So we make
many calls in a row, as a training step does, and synchronize once. LSTM layers are timed as a chain of several, forward
and then backward, as in a model. For the first and last block we count only GPU time, because in a model the layers
keep the GPU busy while these blocks are launched.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from course_lib.core.memory import LSTM
from course_lib.core.model import Embed, Project, Recurrent
from course_lib.messages.link import Line, fit_line
from course_lib.one_device.block_times import HEAD, TABLE, BlockSeconds, BlockTimes, PrecisionTimes, Surface
from course_lib.runtime.machine import device, wait_for_gpu

LONG = 0.3  # seconds: a call that takes longer is not repeated
SLEEP = 4_000_000  # cycles, about two milliseconds: longer than enqueuing the work of one call takes
PRECISIONS = ("float32", "tf32", "bfloat16")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=1e-3),
    "SGD with momentum": lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=1e-3),
}


@dataclass(frozen=True)
class Sizes:
    """The sizes to measure: every width with every number of sequences and steps, up to `operations` in total.

    `words` are the outputs of the output layer and the rows of an embedding; `cells` are steps times sequences.
    """

    hidden: tuple[int, ...] = (16, 64, 256)
    sequences: tuple[int, ...] = (1, 8, 32)
    steps: tuple[int, ...] = (1, 8, 32)
    words: tuple[int, ...] = (16, 1024)
    cells: tuple[int, ...] = (16, 256)
    parameters: tuple[int, ...] = (10_000, 1_000_000)
    operations: float = 3e8  # the most in one forward pass: larger sizes are skipped


ON_A_GPU = Sizes(
    hidden=(256, 512, 1024, 2048, 4096, 8192),
    sequences=(1, 4, 16, 32, 64, 128, 256, 1024),
    steps=(1, 8, 32, 128),
    words=(16, 1024, 8192, 32_768),
    cells=(256, 4096, 32_768),
    parameters=(1_000_000, 100_000_000),
    operations=4e13,
)


def calibrate(
    sizes: Sizes | None = None, precisions: Sequence[str] = ("float32",), *, at_least: float = 0.008
) -> BlockTimes:
    """Measure this device. Each time is the better of two tries, and each try takes at least `at_least` seconds."""
    if unknown := set(precisions) - set(PRECISIONS):
        raise ValueError(f"precision={unknown.pop()!r}: choose {', '.join(PRECISIONS)}")
    chosen = sizes or (ON_A_GPU if device().type == "cuda" else Sizes())
    grids = list(_grids(chosen))
    kind, width, rows, columns = grids[0]
    _measure(kind, width, rows[0], columns[0], precisions[0], at_least)  # the first one includes one-time setup
    measured: dict[str, PrecisionTimes] = {}
    for precision in precisions:
        surfaces: dict[str, dict[int, Surface]] = {}
        with computing_in(precision):
            for kind, width, rows, columns in tqdm(grids, desc=f"block times in {precision}", delay=2, disable=None):
                points = partial(_measure, kind, width, precision=precision, at_least=at_least)
                seconds = tuple(tuple(points(row, column) for column in columns) for row in rows)
                surfaces.setdefault(kind, {})[width] = Surface(rows, columns, seconds)
            measured[precision] = PrecisionTimes(surfaces, _updates(chosen.parameters, at_least))
    return BlockTimes(torch.cuda.get_device_name() if device().type == "cuda" else "this CPU", measured)


def _grids(sizes: Sizes) -> Iterator[tuple[str, int, tuple[int, ...], tuple[int, ...]]]:
    """Yield kinds and widths, with the rows and columns to measure: for an LSTM, those that are affordable."""
    for width in sizes.hidden:
        per_cell = 16 * width**2
        steps = [size for size in sizes.steps if per_cell * size * max(sizes.sequences) <= sizes.operations]
        steps = steps or [min(sizes.steps)]
        sequences = [size for size in sizes.sequences if per_cell * size * max(steps) <= sizes.operations]
        yield LSTM, width, tuple(sequences or [min(sizes.sequences)]), tuple(steps)
    for width in sizes.hidden[::2]:
        yield HEAD, width, sizes.words, sizes.cells
        yield TABLE, width, sizes.words, sizes.cells


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Compute in true float32, in `tf32` (PyTorch's default for LSTMs on a GPU), or in bfloat16 under autocast."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = precision != "float32", False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def autocast_for(precision: str) -> contextlib.AbstractContextManager:
    """Return the context manager for a forward pass in this precision."""
    if precision == "bfloat16":
        return torch.autocast(device().type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def _measure(kind: str, width: int, row: int, column: int, precision: str, at_least: float) -> BlockSeconds:
    # LSTM layers are a chain of several, unless one layer already takes long enough to time.
    several = kind == LSTM and device().type == "cuda" and 16 * width**2 * row * column < 1e12
    layers = 4 if several else 1
    run, inputs = _runner(kind, width, row, column, layers)
    weights, time = list(run.parameters()), partial(seconds_in_a_row, at_least=at_least, alone=kind != LSTM)
    with autocast_for(precision):
        gradient = torch.ones_like(run(inputs))

    def forward() -> Tensor:
        with autocast_for(precision):
            return run(inputs)

    there = time(forward)
    backward = max(time(lambda: torch.autograd.backward(forward(), gradient)) - there, 0.1 * there)
    if kind == TABLE:  # the inputs are word indices, which have no gradient
        return BlockSeconds(there, backward, 0.0, backward)
    of_inputs = time(lambda: torch.autograd.grad(forward(), [inputs], gradient)) - there
    of_weights = time(lambda: torch.autograd.grad(forward(), weights, gradient)) - there
    parts = there, backward, max(of_inputs, 0.1 * there), max(of_weights, 0.1 * there)
    return BlockSeconds(*parts) * (1 / layers)


class _Chain(nn.Module):
    """Blocks in sequence, without their states. With `targets`, the last is an output layer, and its loss follows."""

    def __init__(self, *blocks: nn.Module, targets: Tensor | None = None) -> None:
        super().__init__()
        self.blocks, self.targets = nn.ModuleList(blocks), targets

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs, _ = block(inputs)
        if self.targets is None:
            return inputs
        return nn.functional.cross_entropy(inputs.float().flatten(0, 1), self.targets, reduction="sum")


def _runner(kind: str, width: int, row: int, column: int, layers: int) -> tuple[nn.Module, Tensor]:
    """Return the blocks to run, and their inputs."""
    with device():
        if kind == LSTM:
            chain = _Chain(*(Recurrent(width) for _ in range(layers)))
            return chain, torch.randn(column, row, width, requires_grad=True)
        if kind == TABLE:
            return _Chain(Embed(row, width)), torch.randint(0, row, (column, 1))
        head = _Chain(Project(width, row), targets=torch.randint(0, row, (column,)))
        return head, torch.randn(column, 1, width, requires_grad=True)


def _updates(parameters: Sequence[int], at_least: float) -> dict[str, Line]:
    """Return the time of a step for each optimizer, measured on four tensors with `parameters` numbers in total."""
    lines = {}
    for name, make in OPTIMIZERS.items():
        times = []
        for count in parameters:
            weights = [nn.Parameter(torch.zeros(count // 4, device=device())) for _ in range(4)]
            for weight in weights:
                weight.grad = torch.zeros_like(weight)
            times.append((float(count), seconds_in_a_row(make(weights).step, at_least, alone=True)))
        lines[name] = fit_line(times)
    return lines


def seconds_in_a_row(function: Callable[[], object], at_least: float = 0.02, alone: bool = False) -> float:
    """Return the seconds per call, for many calls with one synchronization. Takes the better of two tries.

    With `alone`, count only GPU time: all work is enqueued before the GPU starts.
    """
    function()  # warm-up: this leaves out one-time work, like setting up libraries and memory
    calls, seconds = 1, _timed(function, 1)
    if seconds > LONG:
        return seconds
    if alone and device().type == "cuda":
        return min(_timed_alone(function, calls=5) for _ in range(2)) / 5
    while seconds < at_least:
        calls = max(2 * calls, min(int(1.2 * calls * at_least / seconds), 64 * calls))
        seconds = _timed(function, calls)
    return min(seconds, _timed(function, calls)) / calls


def _timed(function: Callable[[], object], calls: int) -> float:
    wait_for_gpu()
    started_at = time.perf_counter()
    for _ in range(calls):
        function()
    wait_for_gpu()
    return time.perf_counter() - started_at


def _timed_alone(function: Callable[[], object], calls: int) -> float:
    """Time the calls on a GPU that sleeps first, while its work is enqueued."""
    started, finished = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wait_for_gpu()
    torch.cuda._sleep(calls * SLEEP)
    started.record()
    for _ in range(calls):
        function()
    finished.record()
    wait_for_gpu()
    return started.elapsed_time(finished) / 1000


def save(times: BlockTimes, file: str | Path) -> None:
    """Write the table as JSON, for `read_block_times`."""
    plain: dict[str, Any] = {"device": times.device}
    for precision, measured in times.precisions.items():
        tables: dict[str, Any] = {kind: {} for kind in measured.surfaces}
        for kind, by_width in measured.surfaces.items():
            for width, surface in by_width.items():
                seconds = [[[float(f"{part:.4g}") for part in value.parts] for value in row] for row in surface.seconds]
                tables[kind][str(width)] = {"rows": surface.rows, "columns": surface.columns, "seconds": seconds}
        updates = {name: [line.fixed, line.each] for name, line in measured.updates.items()}
        plain[precision] = {**tables, "updates": updates}
    Path(file).write_text(json.dumps(plain, indent=1) + "\n")
