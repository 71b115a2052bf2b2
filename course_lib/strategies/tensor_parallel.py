"""Tensor parallelism: every layer is split inside; each rank computes some of its units, heads or columns.

The four gates of a hidden unit need the *whole* previous h, but only this unit's rows of the matrices, and only its c.
So the rows can be split by unit. The price: after every time step, every rank needs all of h before it can start the
next.

A GPT block has no such loop. Its attention is split by head and its MLP by column, and the ranks communicate once after
each of the two, for all steps together.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.lstm.gpt import GPTBlock
from course_lib.lstm.model import Loss, Recurrent, SequenceModel, State
from course_lib.strategies.base import MakeOptimizer, Strategy, broadcast_weights
from course_lib.strategies.point_to_point import can_send_from
from course_lib.strategies.shards import Shard, shares
from course_lib.trace import span

GATES = 4


class ShardedRecurrent(nn.Module):
    """An LSTM layer of which this rank has some hidden units. Like `Recurrent`, it takes and returns whole tensors.

    Inputs, outputs and states are the same on all ranks, and so are their gradients.
    """

    def __init__(self, whole: Recurrent) -> None:
        super().__init__()
        self.width = whole.width
        self.sizes = shares(whole.width, dist.get_world_size())
        named = whole.lstm.named_parameters()
        first_unit = sum(self.sizes[: dist.get_rank()])
        units = range(first_unit, first_unit + self.sizes[dist.get_rank()])  # the gates' rows are stacked
        self.rows = tuple(range(g * self.width + units.start, g * self.width + units.stop) for g in range(GATES))
        self.lstm = nn.ParameterDict({name: _part_of(parameter, *self.rows) for name, parameter in named})

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        own = self.lstm
        zeros = inputs.new_zeros(1, inputs.shape[1], self.width)
        state = state or (zeros, zeros)
        inputs, h, c = (UsedInParts.apply(tensor) for tensor in (inputs, state[0][0], state[1][0]))
        c = c.split(self.sizes, dim=-1)[dist.get_rank()]
        from_inputs = nn.functional.linear(inputs, own["weight_ih_l0"], own["bias_ih_l0"] + own["bias_hh_l0"])
        outputs = []
        for gates in from_inputs:  # there is no way around this loop: a step needs the previous one
            i, f, g, o = (gates + h @ own["weight_hh_l0"].t()).chunk(GATES, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h, output = Whole.apply(o.sigmoid() * c.tanh(), self.sizes)
            outputs.append(output)
        return torch.stack(outputs), (outputs[-1][None], Whole.apply(c, self.sizes)[1][None])


class UsedInParts(torch.autograd.Function):
    """Forward: identity. Backward: an all-reduce, because each rank knows only the gradient from its units."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor) -> Tensor:
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        return _summed(gradient)


class Whole(torch.autograd.Function):
    """Forward: gather every rank's part, and return it twice: for the next step's gates, and as the layer's output.

    Backward: the gates are computed in parts, so their gradient must be summed over ranks. The output's gradient is
    already the same on all ranks and must not be summed. Returns this rank's units of both gradients, added.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        ctx.sizes = sizes
        ctx.set_materialize_grads(False)  # after the last step there are no gates: nothing to sum or send
        whole = _gathered(part, sizes)
        return whole, whole.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        from_gates, from_output = gradients
        gradient = None if from_gates is None else _summed(from_gates)
        if from_output is not None:
            gradient = from_output if gradient is None else gradient + from_output
        return (None if gradient is None else gradient.split(ctx.sizes, dim=-1)[dist.get_rank()]), None


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
        heads, columns = shares(whole.heads, ranks), shares(whole.mlp.up.out_features, ranks)
        first, last = (whole.attention.head_width * sum(heads[:stop]) for stop in (rank, rank + 1))
        units, columns = range(first, last), range(sum(columns[:rank]), sum(columns[: rank + 1]))
        self.attention, self.mlp = copy.deepcopy(whole.attention), copy.deepcopy(whole.mlp)
        for name in ("query", "key", "value"):
            setattr(self.attention, name, _columns(getattr(whole.attention, name), units))
        self.mlp.up = _columns(whole.mlp.up, columns)
        self.attention.out, self.mlp.down = (
            RowParallel(whole.attention.out, units),
            RowParallel(whole.mlp.down, columns),
        )
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
        dim = 1 if parameter_name in ("out.weight", "down.weight") else 0
        total = self.width if module == "attention" else 4 * self.width
        shape = tuple(total if place == dim else size for place, size in enumerate(parameter.shape))
        return Shard(parameter, shape, (self.cuts[module],), dim)


class RowParallel(nn.Linear):
    """A linear layer with the weights for some of its inputs. The bias is whole, and added once, after the sum."""

    def __init__(self, whole: nn.Linear, units: range) -> None:
        super().__init__(len(units), whole.out_features, device="meta")
        self.weight = _part_of(whole.weight, units, dim=1)
        self.bias = whole.bias

    def forward(self, input: Tensor) -> Tensor:
        return Summed.apply(nn.functional.linear(input, self.weight)) + self.bias


class Summed(torch.autograd.Function):
    """Forward: an all-reduce. Backward: identity, because the sum's gradient is the same on all ranks."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _summed(part)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


SHARDED = {GPTBlock: ShardedGPTBlock, Recurrent: ShardedRecurrent}


class TensorParallel(Strategy):
    """Every LSTM layer is split by hidden unit, every GPT block by head and column; other blocks are replicated.

    Replicated blocks need no all-reduce. They see the same whole activations on every rank and, thanks to `UsedInParts`
    and `Whole`, the same whole gradients, so every rank computes the same full gradient. (If a GPU sums in a varying
    order, as for an embedding's gradient, replicas may differ in the last bits.) Random draws in a replicated block,
    like dropout, must be the same on every rank; the constructor ensures this.
    """

    def __init__(self, model: SequenceModel, optimizer: MakeOptimizer, loss: Loss, **options: Any) -> None:
        users: dict[int, int] = {}
        for place, block in model.numbered():
            for parameter in block.parameters() if isinstance(block, tuple(SHARDED)) else ():
                if (first_user := users.setdefault(id(parameter), place)) != place:  # cut apart, they would drift apart
                    raise ValueError(f"blocks {first_user} and {place} share a weight: give each its own")
        broadcast_weights(model)
        cut = {
            place: next((make(block) for kind, make in SHARDED.items() if isinstance(block, kind)), block)
            for place, block in model.numbered()
        }
        super().__init__(SequenceModel(cut), optimizer, loss, **options)
        self.model_group = dist.group.WORLD
        self.random_stream = 0
        seed = torch.randint(2**62, (), device=self.device)
        dist.broadcast(seed, 0)
        torch.manual_seed(int(seed))  # so that all ranks draw the same random numbers from now on

    def shards(self) -> dict[str, Shard]:
        """Return this rank's rows of every gate in LSTM layers, its part of GPT blocks, and all of the other blocks."""
        shards = super().shards()
        for place, block in self.model.numbered():
            if isinstance(block, ShardedGPTBlock):
                for name, parameter in block.named_parameters():
                    shards[f"blocks.{place}.{name}"] = block.shard_of(name, parameter)
            if isinstance(block, ShardedRecurrent):
                for name, parameter in block.lstm.items():
                    whole = (GATES * block.width, *parameter.shape[1:])
                    shards[f"blocks.{place}.lstm.{name}"] = Shard(parameter, whole, block.rows)
        return shards


def _columns(whole: nn.Linear, units: range) -> nn.Linear:
    """Return the linear layer with only these outputs."""
    columns = nn.Linear(whole.in_features, len(units), device="meta")
    columns.weight, columns.bias = _part_of(whole.weight, units), _part_of(whole.bias, units)
    return columns


def _part_of(parameter: Tensor, *ranges: range, dim: int = 0) -> nn.Parameter:
    pieces = [parameter.detach().narrow(dim, units.start, len(units)) for units in ranges]
    return nn.Parameter(torch.cat(pieces, dim), requires_grad=parameter.requires_grad)


def _gathered(part: Tensor, sizes: list[int]) -> Tensor:
    """Return (sequences, hidden), joined from every rank's part. All-gather needs equal parts, so we pad."""
    if not part.shape[0]:
        return part.new_zeros(0, sum(sizes))
    padded = nn.functional.pad(part.detach(), (0, max(sizes) - part.shape[-1]))
    sendable = padded if can_send_from(padded.device) else padded.cpu()
    parts = [torch.empty_like(sendable) for _ in sizes]
    with span("communication"):
        dist.all_gather(parts, sendable)
    unpadded = [padded[:, :size] for padded, size in zip(parts, sizes, strict=True)]
    return torch.cat(unpadded, dim=-1).to(part.device)


def _summed(gradient: Tensor) -> Tensor:
    """Return the sum over ranks."""
    total = gradient.contiguous().clone()
    if total.numel():
        with span("communication"):
            dist.all_reduce(total)
    return total
