"""The bytes that a rank holds, by formula, if ranks with the same model divide its states: ZeRO 1, 2 and 3.

    ddp      every rank has all parameters, all gradients and the whole optimizer state
    zero-1   the optimizer state is divided among the ranks, in whole tensors (torch's ZeroRedundancyOptimizer)
    zero-2   gradients and optimizer state are sharded; parameters are whole from the forward to the backward pass
             (fully_shard with reshard_after_forward=False, which also shards the parameters between two updates)
    zero-3   all three are sharded; a block is whole only while it computes (fully_shard)

With replicas, the model is sharded over ranks / replicas ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from course_lib.core.model import SequenceModel

WAYS = ("ddp", "zero-1", "zero-2", "zero-3")


@dataclass(frozen=True)
class ShardedMemory:
    """Bytes on one rank, without activations: three parts that last between updates, and the peak during one."""

    parameters: int
    gradients: int
    optimizer: int
    passing: int = 0  # the peak of gathered blocks and gradients, whole or already reduced to a shard

    @property
    def at_rest(self) -> int:
        return self.parameters + self.gradients + self.optimizer

    @property
    def peak(self) -> int:
        return self.parameters + self.optimizer + max(self.gradients, self.passing)


def predict_sharding(
    model: SequenceModel, way: str, ranks: int, *, replicas: int = 1, optimizer_numbers: int = 2
) -> ShardedMemory:
    """Return the bytes on the rank that holds the most; `optimizer_numbers` is per parameter, 2 for Adam.

    Parameters are sharded by rows, so the first ranks may have one row more, and gathered blocks are padded to equal
    rows per rank. In the backward pass, the next block is gathered while one computes, so two are whole at a time.
    """
    if way not in WAYS:
        raise ValueError(f"way={way!r}: choose {', '.join(WAYS)}")
    if ranks < 1 or replicas < 1 or ranks % replicas:
        raise ValueError(f"replicas={replicas} on {ranks} ranks: give a number of replicas that divides the ranks")
    sizes, shards = [weight.nbytes for weight in model.parameters()], ranks // replicas
    if way in ("ddp", "zero-1"):
        optimizer = optimizer_numbers * (largest_share(sizes, ranks) if way == "zero-1" else sum(sizes))
        return ShardedMemory(sum(sizes), sum(sizes), optimizer)

    def first_rows(weight: Tensor) -> int:  # the bytes of the first rank's rows; no rank has more
        return weight.nbytes // len(weight) * -(-len(weight) // shards)

    shard = sum(map(first_rows, model.parameters()))
    if shards == 1:
        return ShardedMemory(shard, shard, optimizer_numbers * shard)
    blocks = [sum(map(first_rows, block.parameters())) for _, block in model.numbered()]
    # While a block computes backward, it, the next one (with ZeRO-2, all that remain) and its gradient are whole, and
    # the gradients computed before are shards.
    passing = []
    for place, gradient in enumerate(blocks):
        whole = sum(blocks[0 if way == "zero-2" else max(0, place - 1) : place + 1]) + gradient
        passing.append(shards * whole + sum(blocks[place + 1 :]))
    return ShardedMemory(shard, shard, optimizer_numbers * shard, max(passing))


def block_bytes(model: SequenceModel) -> dict[str, int]:
    """Return the bytes of each block's parameters, by its place in the model."""
    return {str(place): sum(weight.nbytes for weight in block.parameters()) for place, block in model.numbered()}


def largest_share(sizes: Sequence[int], ranks: int) -> int:
    """Return the most that a rank gets if whole tensors are dealt out, largest first, to the rank with the least."""
    shares = [0] * ranks
    for size in sorted(sizes, reverse=True):
        shares[shares.index(min(shares))] += size
    return max(shares)
