"""What one update costs a device, block by block: seconds from a table of measured times, and bytes by formula.

Small pieces leave most of a device idle, so dividing FLOPs by one speed gives the wrong time. Between two measured
sizes we interpolate. Outside them we assume only speeds that were measured: a larger piece runs at the speed of the
largest one, and a smaller piece takes as long as the smallest.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.core.memory import EMBEDDING, LSTM, PROJECTION, BlockSize, size_of
from course_lib.messages.link import Line

if TYPE_CHECKING:
    from torch import nn


HEAD, TABLE = "head", "embedding"  # measured besides LSTM layers: the output layer with its loss, and an embedding
HALF = "bfloat16"  # under autocast: activations, messages and gathered weights take two bytes, gradients four


@dataclass(frozen=True)
class BlockSeconds:
    """The times of one block for one piece. A split backward pass may cost more in total than a whole one."""

    forward: float
    backward: float
    input_gradients: float
    weight_gradients: float

    def __add__(self, other: BlockSeconds) -> BlockSeconds:
        return BlockSeconds(*(a + b for a, b in zip(self.parts, other.parts, strict=True)))

    def __mul__(self, factor: float) -> BlockSeconds:
        return BlockSeconds(*(factor * part for part in self.parts))

    @property
    def parts(self) -> tuple[float, float, float, float]:
        return self.forward, self.backward, self.input_gradients, self.weight_gradients


@dataclass(frozen=True)
class Surface:
    """A grid of measured times over two sizes, for example sequences and steps: `seconds[row][column]`."""

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    seconds: tuple[tuple[BlockSeconds, ...], ...]

    def at(self, row: float, column: float) -> BlockSeconds:
        """Return the time at this point, by linear interpolation: a fixed part plus a part that grows with size."""
        low, high, down, taller = _between(self.rows, row)
        left, right, across, wider = _between(self.columns, column)
        lower, upper = (_blend(self.seconds[place][left], self.seconds[place][right], across) for place in (low, high))
        return _blend(lower, upper, down) * taller * wider


@dataclass(frozen=True)
class PrecisionTimes:
    """All measurements in one precision: surfaces by kind and width, and optimizer step times.

    An LSTM layer's surface has rows of sequences and columns of steps. The others have rows of words (or other outputs)
    and columns of cells: steps times sequences.
    """

    surfaces: Mapping[str, Mapping[int, Surface]]
    updates: Mapping[str, Line]  # by optimizer: a fixed time, and a time per parameter

    def at(self, kind: str, width: int, row: float, column: float) -> BlockSeconds:
        """Return the time of a block of any width, interpolating between the measured widths."""
        measured = self.surfaces.get(kind)
        if not measured:
            raise ValueError(f"no {kind} was measured: use a table that has one")
        widths = sorted(measured)
        low, high, share, wider = _between(widths, width)
        time = _blend(measured[widths[low]].at(row, column), measured[widths[high]].at(row, column), share)
        return time * wider ** (2 if kind == LSTM else 1)


@dataclass(frozen=True)
class BlockTimes:
    """A table of measured times for one device."""

    device: str
    precisions: Mapping[str, PrecisionTimes]

    def of(
        self, block: nn.Module | BlockSize, sequences: float, steps: float, precision: str = "float32"
    ) -> BlockSeconds:
        """Return the time of a piece of this many sequences and steps. The output layer includes its loss."""
        times, size, cells = self.in_precision(precision), size_of(block), sequences * steps
        if size.kind == LSTM:
            return times.at(LSTM, size.width, sequences, steps)
        if size.kind == EMBEDDING:
            return times.at(TABLE, size.width, size.inputs, cells)
        if size.kind == PROJECTION:
            width, outputs = size.inputs, size.width
            if width < min(times.surfaces[HEAD]):  # an input layer for a few features: the same matmul, transposed
                width, outputs = outputs, width
            return times.at(HEAD, width, outputs, cells)
        raise ValueError(f"a block of type {size.kind} was never measured: give its times yourself")

    def update_seconds(self, parameters: float, optimizer: str, precision: str = "float32") -> float:
        """Return how long the optimizer takes to update this many parameters."""
        updates = self.in_precision(precision).updates
        if optimizer not in updates:
            raise ValueError(f"optimizer={optimizer!r} was not measured: choose {', '.join(updates)}")
        return updates[optimizer].at(parameters)

    def in_precision(self, precision: str) -> PrecisionTimes:
        if precision not in self.precisions:
            raise ValueError(f"precision={precision!r} was not measured: choose {', '.join(self.precisions)}")
        return self.precisions[precision]


def read_block_times(file: str | Path) -> BlockTimes:
    """Read a table that `python -m tests.benchmarks.gpu_times FILE` wrote."""
    plain = json.loads(Path(file).read_text())
    precisions = {}
    for name in [name for name in plain if name not in ("device", "interpolated")]:
        updates = {optimizer: Line(*numbers) for optimizer, numbers in plain[name].pop("updates").items()}
        surfaces: dict[str, dict[int, Surface]] = {kind: {} for kind in plain[name]}
        for kind, by_width in plain[name].items():
            for width, table in by_width.items():
                seconds = tuple(tuple(BlockSeconds(*parts) for parts in row) for row in table["seconds"])
                surfaces[kind][int(width)] = Surface(tuple(table["rows"]), tuple(table["columns"]), seconds)
        precisions[name] = PrecisionTimes(surfaces, updates)
    return BlockTimes(plain["device"], precisions)


@cache
def h200_block_times() -> BlockTimes:
    """Return the course's table, from an NVIDIA H200; it lists, as `interpolated`, the times that were replaced."""
    return read_block_times(Path(__file__).with_name("h200.json"))


def _between(sizes: Sequence[float], size: float) -> tuple[int, int, float, float]:
    """Return the indices of the two measured sizes around `size`, and its position between them, from 0 to 1.

    A size outside the measured range counts as the nearest one. The last number is the factor by which `size` exceeds
    the largest one, so that larger pieces run at its speed.
    """
    inside = min(max(size, sizes[0]), sizes[-1])
    high = min(bisect_right(sizes, inside), len(sizes) - 1)
    low = max(high - 1, 0)
    share = (inside - sizes[low]) / (sizes[high] - sizes[low]) if low < high else 0.0
    return low, high, share, max(size / sizes[-1], 1.0)


def _blend(a: BlockSeconds, b: BlockSeconds, share: float) -> BlockSeconds:
    """Interpolate linearly between two times."""
    return a * (1 - share) + b * share
