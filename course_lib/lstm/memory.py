"""Where the memory of a training step goes, by formula. Nothing is run, and nothing but sizes is looked at."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from course_lib.lstm.sizes import PROJECTION, BlockSize, ModelSize, size_of

if TYPE_CHECKING:
    from torch import nn

    from course_lib.data import Batch
    from course_lib.lstm.model import SequenceModel


@dataclass(frozen=True)
class Memory:
    """Bytes that a training step needs, by what they are for."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return sum(astuple(self))

    def __str__(self) -> str:
        parts = [f"{name} {size / 2**20:.2f} MiB" for name, size in vars(self).items()]
        return ", ".join(parts) + f": {self.total / 2**20:.2f} MiB"


@dataclass(frozen=True)
class BatchSize:
    """How large a batch would be, if there were one: all that a formula needs to know of it."""

    steps: int
    sequences: int


def predict_memory(model: SequenceModel | ModelSize, batch: Batch | BatchSize, *, optimizer_numbers: int = 2) -> Memory:
    """Counted, without running anything.

    `optimizer_numbers` is per parameter: 2 for Adam, 1 for momentum, 0 for plain SGD.

    Activations: 7 numbers per hidden unit, step and sequence in every LSTM layer, and the inputs of the way out.
    """
    blocks = [predict_block_memory(*numbered, batch, optimizer_numbers) for numbered in model.numbered()]
    return Memory(*(sum(parts) for parts in zip(*map(astuple, blocks), strict=True)))


def predict_block_memory(
    place: int, block: nn.Module | BlockSize, batch: Batch | BatchSize, optimizer_numbers: int = 2
) -> Memory:
    """The share of the block at this place of the model. The first block's inputs are the batch: they count nowhere."""
    size = size_of(block)
    parameters = size.number_bytes * size.parameters
    numbers = 0 if size.kind == PROJECTION and place == 0 else size.kept
    activations = size.number_bytes * batch.steps * batch.sequences * numbers
    return Memory(parameters, parameters, optimizer_numbers * parameters, activations)
