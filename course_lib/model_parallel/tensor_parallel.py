"""Tensor parallelism: a layer is split inside, and each rank computes some of its hidden units.

The four gates of a hidden unit need the *whole* previous h, but only this unit's rows of the matrices, and only its c.
So the rows can be split by unit. The price: after every time step, every rank needs all of h before it can start the
next.

`SHARDED` says which kinds of blocks are split, and by which class; `transformer.gpt` adds a GPT's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.core.model import Loss, Recurrent, SequenceModel, State
from course_lib.core.shards import Shard, shares
from course_lib.core.strategy import MakeOptimizer, Strategy, broadcast_weights
from course_lib.model_parallel.point_to_point import can_send_from
from course_lib.runtime.trace import span

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
        self.lstm = nn.ParameterDict({name: part_of(parameter, *self.rows) for name, parameter in named})

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

    def shard_of(self, name: str, parameter: nn.Parameter) -> Shard:
        """Return this rank's rows of every gate."""
        return Shard(parameter, (GATES * self.width, *parameter.shape[1:]), self.rows)


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


# A kind of block -> the class that makes a rank's part of one. It takes and returns whole tensors, and has `shard_of`.
SHARDED: dict[type, Callable[[Any], Any]] = {Recurrent: ShardedRecurrent}


class TensorParallel(Strategy):
    """Every block of a kind in `SHARDED` is split, an LSTM layer by hidden unit; other blocks are replicated.

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
        blocks = dict(model.numbered())
        self.cut = {
            place: make(block)
            for place, block in blocks.items()
            for kind, make in SHARDED.items()
            if isinstance(block, kind)
        }
        super().__init__(SequenceModel(blocks | self.cut), optimizer, loss, **options)
        self.model_group = dist.group.WORLD
        self.random_stream = 0
        seed = torch.randint(2**62, (), device=self.device)
        dist.broadcast(seed, 0)
        torch.manual_seed(int(seed))  # so that all ranks draw the same random numbers from now on

    def shards(self) -> dict[str, Shard]:
        """Return this rank's part of the blocks that are split, and all of the others."""
        shards = super().shards()
        for place, block in self.cut.items():
            for name, parameter in block.named_parameters():
                shards[f"blocks.{place}.{name}"] = block.shard_of(name, parameter)
        return shards


def part_of(parameter: Tensor, *ranges: range, dim: int = 0) -> nn.Parameter:
    """Return a parameter with only these ranges along `dim`."""
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
