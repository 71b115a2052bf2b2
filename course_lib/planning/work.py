"""What one update asks for: how long each block takes for a piece of any size, and how many bytes there are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from course_lib.lstm.memory import BatchSize, Memory, predict_block_memory
from course_lib.lstm.savings import OPTIMIZERS
from course_lib.lstm.sizes import BlockSize, ModelSize, size_of
from course_lib.planning.block_times import BlockSeconds, BlockTimes

if TYPE_CHECKING:
    from course_lib.data import Batch
    from course_lib.lstm.model import SequenceModel


@dataclass(frozen=True)
class Work:
    """One update of `model` on a batch of so many sequences and steps, on devices of which the block times are known.

    `optimizer` is the one that is really used: it decides on memory, and on what the update itself takes.
    """

    blocks: tuple[BlockSize, ...]
    times: BlockTimes
    sequences: int
    steps: int
    precision: str
    optimizer: str
    memory: tuple[Memory, ...]  # per block, for the whole batch
    edges: tuple[int, ...]  # per block: bytes of its outputs, for the whole batch
    _known: dict[tuple[BlockSize, int, int], BlockSeconds] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        model: SequenceModel | ModelSize,
        batch: Batch | BatchSize,
        times: BlockTimes,
        *,
        precision: str = "float32",
        optimizer: str = "Adam",
    ) -> Work:
        """The work of training `model` on `batch`. The model is never run: its size is enough."""
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer={optimizer!r}: choose {', '.join(OPTIMIZERS)}")
        times.in_precision(precision)
        numbered = [(place, size_of(block)) for place, block in model.numbered()]
        numbers, blocks = OPTIMIZERS[optimizer], tuple(size for _, size in numbered)
        memory = tuple(_memory(predict_block_memory(*each, batch, numbers), precision) for each in numbered)
        cells = batch.steps * batch.sequences * blocks[0].number_bytes
        edges = tuple(cells * size.width for size in blocks)
        return cls(blocks, times, batch.sequences, batch.steps, precision, optimizer, memory, edges)

    def seconds(self, place: int, pieces: int, chunks: int = 1) -> BlockSeconds:
        """What the block at this place takes for one piece, if sequences are cut so often, and time into chunks."""
        key = self.blocks[place], math.ceil(self.sequences / pieces), math.ceil(self.steps / chunks)
        if key not in self._known:
            self._known[key] = self.times.of(*key, self.precision)
        return self._known[key]

    def update_seconds(self, weight_bytes: float) -> float:
        """What the optimizer takes for so many bytes of weights."""
        return self.times.update_seconds(weight_bytes / self._bytes_per_weight, self.optimizer, self.precision)

    @property
    def _bytes_per_weight(self) -> int:
        return self.blocks[0].number_bytes

    def weights(self, places: Iterable[int]) -> int:
        """Bytes of the parameters of these blocks."""
        return sum(self.memory[place].parameters for place in places)

    def states(self, places: Iterable[int]) -> int:
        """Bytes of their parameters, gradients and the optimizer's numbers."""
        return sum(each.parameters + each.gradients + each.optimizer for each in map(self.memory.__getitem__, places))

    def activations(self, places: Iterable[int]) -> int:
        """Bytes that their forward passes keep, for the whole batch."""
        return sum(self.memory[place].activations for place in places)


def _memory(given: Memory, precision: str) -> Memory:
    """Under autocast the weights stay as they are, and what is kept for the backward pass has half the size."""
    kept = given.activations // 2 if precision == "bfloat16" else given.activations
    return Memory(given.parameters, given.gradients, given.optimizer, kept)
