"""What the usual ways to save memory leave of a training step's: another precision, recomputation, sharding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_lib.lstm.memory import BatchSize, Memory, predict_block_memory
from course_lib.lstm.sizes import LSTM, NUMBERS_PER_UNIT, ModelSize, size_of

if TYPE_CHECKING:
    from course_lib.data import Batch
    from course_lib.lstm.model import SequenceModel

# Bytes of a parameter (and of its gradient and the optimizer's numbers), and of an activation.
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
    """What is done about it. `sharded` says what the ranks share out instead of each having all of it."""

    optimizer: str = "Adam"
    precision: str = "float32"
    recompute: bool = False
    sharded: str = "nothing"
    ranks: int = 1

    def __post_init__(self) -> None:
        for name, known in (("optimizer", OPTIMIZERS), ("precision", PRECISIONS), ("sharded", SHARDED)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: choose {'; '.join(known)}")
        if self.ranks < 1:
            raise ValueError(f"ranks={self.ranks}: give at least one")


def predict_with(model: SequenceModel | ModelSize, batch: Batch | BatchSize, savings: Savings | None = None) -> Memory:
    """What one rank needs for a step on its `batch`, by formula. Without savings it is what `predict_memory` says.

    Recomputation keeps the inputs of each layer, and computes the rest of *one* layer at a time again on the way back.
    Of sharded parameters a rank has its piece, and the largest block whole, while that block works.
    """
    savings = savings or Savings()
    of_weight, of_activation = PRECISIONS[savings.precision]
    numbers = OPTIMIZERS[savings.optimizer]
    sizes = ModelSize(tuple(size_of(block) for _, block in model.numbered()))
    blocks = {place: predict_block_memory(place, block, batch, numbers) for place, block in model.numbered()}
    size = sizes.blocks[0].number_bytes
    kept = _recomputed(sizes, batch, size) if savings.recompute else sum(each.activations for each in blocks.values())
    parameters = sum(each.parameters for each in blocks.values()) * of_weight // size
    whole = {"parameters": parameters, "gradients": parameters, "optimizer": numbers * parameters}
    shared = {name: -(-whole[name] // savings.ranks) for name in SHARDED[savings.sharded]}
    if "parameters" in shared and savings.ranks > 1:
        shared["parameters"] += max(each.parameters for each in blocks.values()) * of_weight // size
    return Memory(**{**whole, **shared}, activations=kept * of_activation // size)


def _recomputed(model: ModelSize, batch: Batch | BatchSize, size: int) -> int:
    """The inputs of every LSTM layer and of the way out, and all that one layer's backward pass must know."""
    widths = [block.width for block in model.blocks if block.kind == LSTM]
    cells = batch.steps * batch.sequences * size
    way_out = sum(
        predict_block_memory(place, block, batch).activations for place, block in model.numbered() if block.kind != LSTM
    )
    return cells * (sum(widths) + NUMBERS_PER_UNIT * max(widths, default=0)) + way_out
