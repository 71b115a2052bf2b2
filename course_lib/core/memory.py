"""Predict the memory of a training step by formula, with or without lower precision, recomputation and sharding.

Nothing is run; the formulas need only the size of each block, from a real model or a made-up one.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn

    from course_lib.core.batch import Batch

EMBEDDING, LSTM, PROJECTION = "embedding", "lstm", "projection"

# What the backward pass of an LSTM cell needs, in numbers per hidden unit: the four gates, c, tanh(c) and h.
NUMBERS_PER_UNIT = 7


@dataclass(frozen=True)
class BlockSize:
    """A block's size: for each step, it takes `inputs` numbers (or one of `inputs` tokens) and returns `width` numbers.

    `kind` is embedding, lstm or projection; any other block has its class's name, and its parameters are in `counted`.
    """

    kind: str
    inputs: int
    width: int
    number_bytes: int = 4
    counted: int = 0

    @property
    def parameters(self) -> int:
        """The number of parameters, by formula."""
        if self.kind == LSTM:
            return count_lstm_parameters(self.width)
        if self.kind == EMBEDDING:
            return self.inputs * self.width
        return self.inputs * self.width + self.width if self.kind == PROJECTION else self.counted

    @property
    def saved(self) -> int:
        """How many numbers per step and sequence the backward pass needs."""
        return {LSTM: NUMBERS_PER_UNIT * self.width, PROJECTION: self.inputs}.get(self.kind, 0)


class NumberedBlocks(Protocol):
    """A `SequenceModel`, or a `ModelSize` that replaces one."""

    def numbered(self) -> list[tuple[int, Any]]: ...


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model's blocks, in order. It can replace a model if nothing is run."""

    blocks: tuple[BlockSize, ...]

    def numbered(self) -> list[tuple[int, Any]]:
        """Return (place, size) pairs, in order."""
        return list(enumerate(self.blocks))


def lstm_size(vocabulary: int, hidden: int, layers: int) -> ModelSize:
    """Return the size of `lstm_model(vocabulary=vocabulary, hidden=hidden, layers=layers)`."""
    way_in, way_out = BlockSize(EMBEDDING, vocabulary, hidden), BlockSize(PROJECTION, hidden, vocabulary)
    return ModelSize((way_in, *[BlockSize(LSTM, hidden, hidden)] * layers, way_out))


def size_of(block: Any) -> BlockSize:
    """Return the size of a module; a size is returned unchanged. Counts the parameters of unknown blocks."""
    if isinstance(block, BlockSize):
        return block
    number_bytes = next(block.parameters()).element_size()
    if hasattr(block, "block_size"):
        return replace(block.block_size, number_bytes=number_bytes)
    counted = sum(parameter.numel() for parameter in block.parameters())
    return BlockSize(type(block).__name__, 0, getattr(block, "width", 0), number_bytes, counted)


def count_lstm_parameters(hidden: int) -> int:
    """Return an LSTM layer's parameter count: 4 gates, each with two square matrices and two biases."""
    return 4 * (2 * hidden * hidden + 2 * hidden)


@dataclass(frozen=True)
class Memory:
    """Bytes that a training step needs, by purpose."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return sum(astuple(self))

    def __str__(self) -> str:
        sizes = [f"{name} {size / 2**20:.2f} MiB" for name, size in vars(self).items()]
        return ", ".join(sizes) + f": {self.total / 2**20:.2f} MiB"


@dataclass(frozen=True)
class BatchSize:
    """The size of a batch, which is all that the formulas need."""

    steps: int
    sequences: int


def predict_memory(model: NumberedBlocks, batch: Batch | BatchSize, *, optimizer_numbers: int = 2) -> Memory:
    """Return the memory that a training step needs, without running anything: the sum over its blocks.

    `optimizer_numbers` is per parameter: 2 for Adam, 1 for momentum, 0 for plain SGD.
    """
    blocks = [predict_block_memory(*numbered, batch, optimizer_numbers) for numbered in model.numbered()]
    return Memory(*(sum(parts) for parts in zip(*map(astuple, blocks), strict=True)))


def predict_block_memory(
    place: int, block: nn.Module | BlockSize, batch: Batch | BatchSize, optimizer_numbers: int = 2
) -> Memory:
    """Return the memory for the block at this place. The first block's inputs are the batch, which does not count."""
    size = size_of(block)
    parameters = size.number_bytes * size.parameters
    numbers = 0 if size.kind == PROJECTION and place == 0 else size.saved
    activations = size.number_bytes * batch.steps * batch.sequences * numbers
    return Memory(parameters, parameters, optimizer_numbers * parameters, activations)


# Bytes per parameter (also per gradient and optimizer number), and per activation.
PRECISIONS = {"float32": (4, 4), "autocast to bfloat16": (4, 2), "all bfloat16": (2, 2)}
OPTIMIZERS = {"SGD": 0, "SGD with momentum": 1, "Adam": 2}  # numbers per parameter
SHARDED = {
    "nothing": (),
    "optimizer": ("optimizer",),
    "optimizer, gradients": ("optimizer", "gradients"),
    "optimizer, gradients, parameters": ("optimizer", "gradients", "parameters"),
}


@dataclass(frozen=True)
class Savings:
    """Ways to save memory. `sharded` is what is split over the ranks instead of replicated."""

    optimizer: str = "Adam"
    precision: str = "float32"
    recompute: bool = False
    sharded: str = "nothing"
    ranks: int = 1

    def __post_init__(self) -> None:
        for name, choices in (("optimizer", OPTIMIZERS), ("precision", PRECISIONS), ("sharded", SHARDED)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: choose {'; '.join(choices)}")
        if self.ranks < 1:
            raise ValueError(f"ranks={self.ranks}: give at least one")


def predict_with(model: NumberedBlocks, batch: Batch | BatchSize, savings: Savings | None = None) -> Memory:
    """Return what one rank needs for a step on its `batch`. Without savings, this equals `predict_memory`.

    Autocast keeps a half-precision copy of every weight, except an embedding's, until the backward pass has used it;
    here the copies count as activations. Recomputation keeps the inputs of each layer, and recomputes the rest of *one*
    layer at a time in the backward pass. With sharded parameters, a rank stores its piece, plus the largest block as a
    whole, while that block runs.
    """
    savings = savings or Savings()
    (of_weight, of_activation), numbers = PRECISIONS[savings.precision], OPTIMIZERS[savings.optimizer]
    blocks = [(size_of(block), predict_block_memory(place, block, batch)) for place, block in model.numbered()]
    size = blocks[0][0].number_bytes
    activations = sum(memory.activations for _, memory in blocks)
    if savings.recompute:  # the inputs of all LSTM layers, one layer's activations as a whole, and the other blocks'
        layers = [block for block, _ in blocks if block.kind == LSTM]
        numbers_kept = sum(block.width for block in layers) + max((block.saved for block in layers), default=0)
        others = (memory.activations for block, memory in blocks if block.kind != LSTM)
        activations = numbers_kept * batch.steps * batch.sequences * size + sum(others)
    parameters = sum(memory.parameters for _, memory in blocks) * of_weight // size
    needs = {"parameters": parameters, "gradients": parameters, "optimizer": numbers * parameters}
    shares = {name: -(-needs[name] // savings.ranks) for name in SHARDED[savings.sharded]}
    if "parameters" in shares and savings.ranks > 1:
        shares["parameters"] += max(memory.parameters for _, memory in blocks) * of_weight // size
    copied = sum(memory.parameters for block, memory in blocks if block.kind != EMBEDDING)
    copies = copied * of_activation // size if of_activation < of_weight else 0
    return Memory(**{**needs, **shares}, activations=activations * of_activation // size + copies)
