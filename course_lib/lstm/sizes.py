"""How large a model is, block by block: all that a formula needs to know of it, read off a model or just thought up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

EMBEDDING, LSTM, PROJECTION = "embedding", "lstm", "projection"

# What the backward pass of an LSTM cell must know, in numbers per hidden unit: the four gates, c, tanh(c) and h.
NUMBERS_PER_UNIT = 7


@dataclass(frozen=True)
class BlockSize:
    """A block takes `inputs` numbers (or one of `inputs` tokens) for each step of each sequence, and gives `width`.

    `kind` is embedding, lstm or projection, or the name of another type, whose parameters were counted.
    """

    kind: str
    inputs: int
    width: int
    number_bytes: int = 4
    counted: int = 0

    @property
    def parameters(self) -> int:
        """How many numbers it learns, by formula."""
        if self.kind == LSTM:
            return count_lstm_parameters(self.width)
        if self.kind == EMBEDDING:
            return self.inputs * self.width
        return self.inputs * self.width + self.width if self.kind == PROJECTION else self.counted

    @property
    def kept(self) -> int:
        """For each step of each sequence: how many numbers the backward pass must know."""
        return {LSTM: NUMBERS_PER_UNIT * self.width, PROJECTION: self.inputs}.get(self.kind, 0)


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model's blocks, in order: it stands for a model wherever nothing is run."""

    blocks: tuple[BlockSize, ...]

    def numbered(self) -> list[tuple[int, BlockSize]]:
        """(place, size), in order."""
        return list(enumerate(self.blocks))


def lstm_size(vocabulary: int, hidden: int, layers: int) -> ModelSize:
    """The size of `lstm_model(vocabulary=vocabulary, hidden=hidden, layers=layers)`."""
    ends = BlockSize(EMBEDDING, vocabulary, hidden), BlockSize(PROJECTION, hidden, vocabulary)
    return ModelSize((ends[0], *[BlockSize(LSTM, hidden, hidden)] * layers, ends[1]))


def size_of(block: Any) -> BlockSize:
    """The size of a module, or of a size itself. Blocks of ours know theirs; of others, the parameters are counted."""
    if isinstance(block, BlockSize):
        return block
    number_bytes = next(block.parameters()).element_size()
    if hasattr(block, "block_size"):
        return replace(block.block_size, number_bytes=number_bytes)
    counted = sum(parameter.numel() for parameter in block.parameters())
    return BlockSize(type(block).__name__, 0, getattr(block, "width", 0), number_bytes, counted)


def count_lstm_parameters(hidden: int) -> int:
    """An LSTM layer has 4 gates, each with two square matrices and two biases."""
    return 4 * (2 * hidden * hidden + 2 * hidden)
