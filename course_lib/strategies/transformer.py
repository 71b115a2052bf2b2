"""Tensor parallelism for GPT blocks: attention is split by head, the MLP by column.

There is no loop over time as in an LSTM: the ranks communicate once after each of the two, for all steps together.
"""

from __future__ import annotations

import copy

import torch.distributed as dist
from torch import Tensor, nn

from course_lib.lstm.gpt import GPTBlock
from course_lib.lstm.model import State
from course_lib.strategies.shards import Shard, shares
from course_lib.strategies.tensor_parallel import SHARDED, Summed, UsedInParts, part_of


class ShardedGPTBlock(GPTBlock):
    """A GPT block of which this rank has some heads, and some of the MLP's columns. Inputs and outputs are whole.

    Queries, keys, values and the MLP's `up` are column-parallel; the row-parallel `out` and `down` sum over ranks.
    """

    def __init__(self, whole: GPTBlock) -> None:
        nn.Module.__init__(self)
        ranks, rank = dist.get_world_size(), dist.get_rank()
        if whole.heads < ranks:
            raise ValueError(
                f"a GPT block with {whole.heads} heads on {ranks} ranks: tensor parallelism gives every rank at least "
                "one head; give the model more heads, or use fewer ranks"
            )
        self.width, self.heads, self.cache = whole.width, whole.heads, whole.cache
        self.norm_1, self.norm_2 = whole.norm_1, whole.norm_2
        self.attention, self.mlp = copy.deepcopy(whole.attention), copy.deepcopy(whole.mlp)
        heads, columns = shares(whole.heads, ranks), shares(whole.mlp.up.out_features, ranks)
        first, last = (whole.attention.head_width * sum(heads[:stop]) for stop in (rank, rank + 1))
        units, columns = range(first, last), range(sum(columns[:rank]), sum(columns[: rank + 1]))
        for linear in (self.attention.query, self.attention.key, self.attention.value):
            linear.weight, linear.bias = part_of(linear.weight, units), part_of(linear.bias, units)
        self.mlp.up.weight, self.mlp.up.bias = (
            part_of(whole.mlp.up.weight, columns),
            part_of(whole.mlp.up.bias, columns),
        )
        self.attention.out = RowParallel(whole.attention.out, units)
        self.mlp.down = RowParallel(whole.mlp.down, columns)
        self.cuts = {"attention": units, "mlp": columns}

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        attended, seen = self.attention(UsedInParts.apply(self.norm_1(inputs)), state)
        middle = inputs + attended
        return middle + self.mlp(UsedInParts.apply(self.norm_2(middle))), seen if self.cache else None

    def shard_of(self, name: str, parameter: nn.Parameter) -> Shard:
        """Return this rank's shard of the block's parameter with this name."""
        module, _, parameter_name = name.partition(".")
        if module not in self.cuts or parameter_name in ("out.bias", "down.bias"):
            return Shard.whole(parameter)
        shape, dim = list(parameter.shape), 1 if parameter_name in ("out.weight", "down.weight") else 0
        shape[dim] = self.width if module == "attention" else 4 * self.width
        return Shard(parameter, tuple(shape), (self.cuts[module],), dim)


class RowParallel(nn.Linear):
    """A linear layer with the weights for some of its inputs. The bias is whole, and added once, after the sum."""

    def __init__(self, whole: nn.Linear, units: range) -> None:
        super().__init__(len(units), whole.out_features, device="meta")
        self.weight, self.bias = part_of(whole.weight, units, dim=1), whole.bias

    def forward(self, input: Tensor) -> Tensor:
        return Summed.apply(nn.functional.linear(input, self.weight)) + self.bias


SHARDED[GPTBlock] = ShardedGPTBlock
