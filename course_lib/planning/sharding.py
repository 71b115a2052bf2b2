"""What sharding leaves on a rank, in bytes by formula: ZeRO 1, 2 and 3, and hybrid sharding.

    ddp      every rank has all parameters, all gradients, all of the optimizer's numbers
    zero-1   the optimizer's numbers are shared out, whole tensors at a time (torch's ZeroRedundancyOptimizer)
    zero-2   gradients and optimizer are cut; parameters are whole from the forward to the backward pass
             (fully_shard with reshard_after_forward=False, which cuts the parameters, too, between two updates)
    zero-3   all three are cut; a block is whole only while it works (fully_shard)

With replicas, the model is cut over ranks / replicas ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from course_lib.lstm.model import SequenceModel

WAYS = ("ddp", "zero-1", "zero-2", "zero-3")


@dataclass(frozen=True)
class ShardedMemory:
    """Bytes on one rank, without activations: three that stay between updates, two that come and go during one."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int = 0  # whole parameters of blocks, at most at a time, on top of the rank's own rows
    whole_gradients: int = 0  # of a block, before they are summed into the rows of their owners

    @property
    def at_rest(self) -> int:
        return self.parameters + self.gradients + self.optimizer

    @property
    def peak(self) -> int:
        return self.at_rest + self.gathered + self.whole_gradients


def predict_sharding(
    model: SequenceModel, way: str, ranks: int, *, replicas: int = 1, optimizer_numbers: int = 2
) -> ShardedMemory:
    """What the rank with most of the model has; `optimizer_numbers` is per parameter, 2 for Adam.

    A parameter is cut by rows, so the first ranks have up to one row more, and a gathered block is padded to full rows.
    On the way back the block that comes next is gathered while one works: two are whole at a time.
    """
    if way not in WAYS:
        raise ValueError(f"way={way!r}: choose {', '.join(WAYS)}")
    if ranks < 1 or replicas < 1 or ranks % replicas:
        raise ValueError(f"replicas={replicas} on {ranks} ranks: give a number of replicas that divides the ranks")
    whole = sum(map(parameter_bytes, model.parameters()))
    if way in ("ddp", "zero-1"):
        shared = largest_share([parameter_bytes(parameter) for parameter in model.parameters()], ranks)
        return ShardedMemory(whole, whole, optimizer_numbers * (shared if way == "zero-1" else whole))
    shards = ranks // replicas
    own = sum(_rows_bytes(parameter, shards) for parameter in model.parameters())
    if shards == 1:
        return ShardedMemory(own, own, optimizer_numbers * own)
    blocks = [
        shards * sum(_rows_bytes(parameter, shards) for parameter in block.parameters()) for block in _blocks(model)
    ]
    two = max((sum(pair) for pair in pairwise(blocks)), default=blocks[0])
    return ShardedMemory(own, own, optimizer_numbers * own, sum(blocks) if way == "zero-2" else two, max(blocks))


def block_bytes(model: SequenceModel) -> dict[str, int]:
    """The bytes of each block's parameters, by its place in the model."""
    return {str(place): sum(map(parameter_bytes, block.parameters())) for place, block in model.numbered()}


def largest_share(sizes: Sequence[int], ranks: int) -> int:
    """The most that a rank gets if whole tensors are dealt out, the largest first, each to whoever has least."""
    shares = [0] * ranks
    for size in sorted(sizes, reverse=True):
        shares[shares.index(min(shares))] += size
    return max(shares)


def parameter_bytes(parameter: Tensor) -> int:
    """All of a parameter, in bytes."""
    return parameter.numel() * parameter.element_size()


def _rows_bytes(parameter: Tensor, shards: int) -> int:
    """The rows of the first rank, which has most."""
    return parameter_bytes(parameter) // len(parameter) * -(-len(parameter) // shards)


def _blocks(model: SequenceModel) -> list[nn.Module]:
    return [block for _, block in model.numbered()]
