"""A small GPT, a list of blocks like the LSTM: causal self-attention and an MLP replace the cell.

Every strategy that cuts between blocks or between sequences trains it unchanged. Nothing is carried from step to step:
a block multiplies all steps of a sequence at once, and each step looks back at the keys and values of earlier ones.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib.core.model import Embed, Project, SequenceModel, State
from course_lib.core.shards import Shard, shares
from course_lib.model_parallel.tensor_parallel import SHARDED, UsedInParts, _summed, part_of

HEADS = 4


class Attention(nn.Module):
    """Causal self-attention, (steps, sequences, width) to the same. The linear layers may hold only some of the heads.

    Positions are rotations of queries and keys, so a sequence may have any length and heads don't depend on each other.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.head_width = width // heads

    def forward(self, inputs: Tensor, earlier: State | None = None) -> tuple[Tensor, State]:
        """Return the outputs, and the keys and values of all steps so far, each (steps, sequences, width)."""
        first = 0 if earlier is None else len(earlier[0])
        query, key = (self.rotated(linear(inputs), first) for linear in (self.query, self.key))
        value = self.value(inputs)
        if earlier is not None:
            key, value = torch.cat([earlier[0], key]), torch.cat([earlier[1], value])
        mixed = attend(*(self.by_head(each) for each in (query, key, value)))
        return self.out(mixed.permute(2, 0, 1, 3).flatten(-2)), (key, value)

    def by_head(self, tensor: Tensor) -> Tensor:
        """Return (steps, sequences, width) as (sequences, heads, steps, head width)."""
        return tensor.unflatten(-1, (-1, self.head_width)).permute(1, 2, 0, 3)

    def rotated(self, tensor: Tensor, first: int) -> Tensor:
        """Return (steps, sequences, width) with pairs of numbers rotated by an angle that grows with the step."""
        half = self.head_width // 2
        steps = torch.arange(first, first + len(tensor), dtype=torch.float64, device=tensor.device)
        speeds = 10_000 ** -(torch.arange(half, dtype=torch.float64, device=tensor.device) / half)
        angles = steps[:, None, None, None] * speeds
        cos, sin = angles.cos().to(tensor.dtype), angles.sin().to(tensor.dtype)
        a, b = tensor.unflatten(-1, (-1, self.head_width)).chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return softmax(query key') value, causal: the queries belong to the last steps of the keys."""
    steps, seen = query.shape[-2], key.shape[-2]
    if steps == seen:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    mask = torch.ones(steps, seen, dtype=torch.bool, device=query.device).tril(seen - steps)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class MLP(nn.Module):
    """Two linear layers, with four times the width between them. They may hold only some of these columns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(inputs)))


class GPTBlock(nn.Module):
    """One transformer block, (steps, sequences, width) to the same: attention, then an MLP, each added to its inputs.

    With `cache`, its state is the keys and values of all steps so far, so that a sequence can run in chunks of time.
    """

    def __init__(self, width: int, heads: int = HEADS, cache: bool = False) -> None:
        super().__init__()
        self.width, self.heads, self.cache = width, heads, cache
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), MLP(width)

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        attended, seen = self.attention(self.norm_1(inputs), state)
        middle = inputs + attended
        return middle + self.mlp(self.norm_2(middle)), seen if self.cache else None

    def check_limits(self, place: int, *, chunks: int, carry_state: bool) -> None:
        """Refuse to carry a state from batch to batch or, without a cache, to the next chunk of time."""
        if carry_state:
            raise ValueError(
                f"carry_state=True: block {place} is a GPT's, and has no state of a fixed size to carry from batch to "
                "batch; all it could carry is every key and value so far. Leave out carry_state, or train an LSTM"
            )
        if chunks > 1 and not self.cache:
            raise ValueError(
                f"chunks={chunks}: block {place} is a GPT's, and its later steps look back at keys and values of the "
                "earlier chunks. Make the model with gpt_model(cache=True), which keeps them, or leave out chunks"
            )


class Readout(nn.Module):
    """The last block: a norm and a linear layer, (steps, sequences, width) to (steps, sequences, outputs)."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.norm, self.linear, self.width = nn.LayerNorm(width), nn.Linear(width, outputs), outputs

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, None]:
        return self.linear(self.norm(inputs)), None


def gpt_model(
    *,
    features: int | None = None,
    vocabulary: int | None = None,
    hidden: int = 64,
    layers: int = 2,
    outputs: int | None = None,
    heads: int = HEADS,
    cache: bool = False,
) -> SequenceModel:
    """Return a GPT with `layers` blocks. Takes the arguments of `lstm_model`, and `heads`, a divisor of `hidden`."""
    if (features is None) == (vocabulary is None):
        raise ValueError("give features= for sequences of numbers, or vocabulary= for tokens, but not both")
    if min(hidden, layers, heads) < 1:
        raise ValueError(f"hidden={hidden}, layers={layers}, heads={heads}: a model needs at least one of each")
    if problem := needs_hidden(hidden, heads):
        raise ValueError(problem)
    way_in = Embed(vocabulary, hidden) if vocabulary is not None else Project(features or 0, hidden)
    blocks = (GPTBlock(hidden, heads, cache) for _ in range(layers))
    return SequenceModel(dict(enumerate([way_in, *blocks, Readout(hidden, outputs or vocabulary or 1)])))


def needs_hidden(hidden: int, heads: int) -> str:
    """Return an error message if `hidden` cannot be divided into pairs among `heads`, else an empty string."""
    even = hidden % (2 * heads) == 0
    return "" if even else f"hidden={hidden}: a GPT with {heads} heads needs a multiple of {2 * heads}"


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


SHARDED[GPTBlock] = ShardedGPTBlock  # so that tensor parallelism splits a block, rather than replicating it


class Summed(torch.autograd.Function):
    """Forward: an all-reduce. Backward: identity, because the sum's gradient is the same on all ranks."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _summed(part)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
