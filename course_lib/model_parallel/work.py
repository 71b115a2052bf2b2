"""The work of one update on devices with known block times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from course_lib.core.memory import OPTIMIZERS, BlockSize, predict_block_memory, size_of

if TYPE_CHECKING:
    from course_lib.core.batch import Batch
    from course_lib.core.memory import BatchSize, Memory, ModelSize
    from course_lib.core.model import SequenceModel
from course_lib.one_device.block_times import HALF, BlockSeconds, BlockTimes


@dataclass(frozen=True)
class Work:
    """One update of a model on a batch of `sequences` and `steps`, on devices with known block times."""

    blocks: tuple[BlockSize, ...]
    times: BlockTimes
    sequences: int
    steps: int
    precision: str
    optimizer: str
    memory: tuple[Memory, ...]  # per block, for the whole batch
    edges: tuple[int, ...]  # per block: bytes of its outputs as a message, for the whole batch
    speed: float = 1.0  # of the devices, relative to the measured ones
    _seconds: dict[tuple[BlockSize, int, int], BlockSeconds] = field(default_factory=dict, repr=False, compare=False)

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
        """Return the work of training `model` on `batch`. Only the model's size matters: it is never run."""
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer={optimizer!r}: choose {', '.join(OPTIMIZERS)}")
        times.in_precision(precision)
        blocks = tuple(size_of(block) for _, block in model.numbered())
        memory = [predict_block_memory(*block, batch, OPTIMIZERS[optimizer]) for block in model.numbered()]
        if precision == HALF:  # autocast saves activations in bfloat16; the weights stay in float32
            memory = [replace(block, activations=block.activations // 2) for block in memory]
        cells = batch.steps * batch.sequences * (2 if precision == HALF else blocks[0].number_bytes)
        edges = tuple(cells * size.width for size in blocks)
        return cls(blocks, times, batch.sequences, batch.steps, precision, optimizer, tuple(memory), edges)

    def seconds(self, place: int, pieces: int, chunks: int = 1) -> BlockSeconds:
        """Return the block's time for one piece, if the sequences are cut into `pieces` and the steps into `chunks`."""
        key = self.blocks[place], math.ceil(self.sequences / pieces), math.ceil(self.steps / chunks)
        if key not in self._seconds:
            self._seconds[key] = self.times.of(*key, self.precision)
        return self._seconds[key] if self.speed == 1 else self._seconds[key] * (1 / self.speed)

    def block_seconds(self, pieces: int, chunks: int) -> list[BlockSeconds]:
        """Return each block's times for one of `pieces` parts of the sequences and `chunks` parts of the steps."""
        return [self.seconds(place, pieces, chunks) for place in range(len(self.blocks))]

    def update_seconds(self, places: Iterable[int], shards: int = 1) -> float:
        """Return how long the optimizer takes for these blocks, or for one shard of each."""
        count = sum(self.memory[place].parameters for place in places) / shards / self.blocks[0].number_bytes
        return self.times.update_seconds(count, self.optimizer, self.precision) / self.speed

    def states(self, places: Iterable[int], shards: int = 1) -> float:
        """Return the bytes of these blocks' parameters and gradients, and of one shard of their optimizer state."""
        blocks = [self.memory[place] for place in places]
        whole = sum(block.parameters + block.gradients for block in blocks)
        return whole + sum(block.optimizer for block in blocks) / shards

    def gathered(self, place: int) -> float:
        """Return the bytes that FSDP gathers for a block: in half precision, weights are sent and used in two bytes."""
        return self.memory[place].parameters / (self.blocks[0].number_bytes / 2 if self.precision == HALF else 1)

    def scaled(self, *, speed: float = 1.0, sequences: float = 1.0) -> Work:
        """Return the same work on faster or slower devices, or with more or fewer sequences."""
        count = max(1, round(self.sequences * sequences))
        share = count / self.sequences
        memory = tuple(replace(block, activations=round(block.activations * share)) for block in self.memory)
        edges = tuple(round(size * share) for size in self.edges)
        return replace(self, sequences=count, memory=memory, edges=edges, speed=self.speed * speed)
