"""Tensor parallelism: every LSTM layer is split inside its cell; each rank computes some of its hidden units.

The four gates of a hidden unit need the *whole* previous h, but only their own rows of the matrices, and only that
unit's c. So the rows can be split by unit. The price: after every time step, all ranks need all of h before any of them
can start the next.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.lstm.model import Loss, Recurrent, SequenceModel, State
from course_lib.machine import device
from course_lib.strategies.base import MakeOptimizer, Strategy, broadcast_weights
from course_lib.strategies.point_to_point import can_send_from
from course_lib.strategies.shards import Shard
from course_lib.trace import span

GATES = 4


class ShardedRecurrent(nn.Module):
    """One LSTM layer of which this rank has some hidden units. Its interface is `Recurrent`'s, with whole tensors.

    Inputs, outputs and states are the same on all ranks, and so are their gradients.
    """

    def __init__(self, whole: Recurrent) -> None:
        super().__init__()
        self.width = whole.width
        self.sizes = shares(whole.width, dist.get_world_size())
        named = whole.lstm.named_parameters()
        first = sum(self.sizes[: dist.get_rank()])
        own = range(first, first + self.sizes[dist.get_rank()])  # units; the rows of the four gates are stacked
        self.rows = tuple(range(g * self.width + own.start, g * self.width + own.stop) for g in range(GATES))
        self.lstm = nn.ParameterDict({name: _own_rows(parameter, self.rows) for name, parameter in named})

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        own = self.lstm
        zeros = inputs.new_zeros(1, inputs.shape[1], self.width)
        state = state or (zeros, zeros)
        inputs, h, c = (UsedInParts.apply(tensor) for tensor in (inputs, state[0][0], state[1][0]))
        c = c.split(self.sizes, dim=-1)[dist.get_rank()]
        from_inputs = nn.functional.linear(inputs, own["weight_ih_l0"], own["bias_ih_l0"] + own["bias_hh_l0"])
        outputs = []
        for gates in from_inputs:  # there is no way around this loop: a step needs the one before
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
        whole = _put_together(part, sizes)
        return whole, whole.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        from_gates, from_output = gradients
        gradient = None if from_gates is None else _summed(from_gates)
        if from_output is not None:
            gradient = from_output if gradient is None else gradient + from_output
        return (None if gradient is None else gradient.split(ctx.sizes, dim=-1)[dist.get_rank()]), None


class TensorParallel(Strategy):
    """Every LSTM layer is split by hidden unit; the other blocks are replicated.

    Replicated blocks need no all-reduce. They see the same whole activations on every rank and, thanks to `UsedInParts`
    and `Whole`, the same whole gradients, so every rank computes the same full gradient. (If a GPU sums in a varying
    order, as for an embedding's gradient, replicas may differ in the last bits.) Random draws in a replicated block,
    like dropout, must be the same on every rank; the constructor makes sure of that.
    """

    def __init__(self, model: SequenceModel, optimizer: MakeOptimizer, loss: Loss, **options: Any) -> None:
        _check_shares_nothing(model)
        broadcast_weights(model)
        cut = SequenceModel({place: _sharded(block) for place, block in model.numbered()})
        super().__init__(cut, optimizer, loss, **options)
        self.model_group = dist.group.WORLD
        self.random_stream = 0
        draw_alike()

    def shards(self) -> dict[str, Shard]:
        """Return this rank's rows of every gate for split layers, and all of the other blocks."""
        shards = super().shards()
        for place, block in self.model.numbered():
            if isinstance(block, ShardedRecurrent):
                for name, parameter in block.lstm.items():
                    whole = (GATES * block.width, *parameter.shape[1:])
                    shards[f"blocks.{place}.lstm.{name}"] = Shard(parameter, whole, block.rows)
        return shards


def shares(units: int, ranks: int) -> list[int]:
    """Return how many units each rank has: as equal as possible; the first ranks get one more if there is a rest."""
    each, extra = divmod(units, ranks)
    return [each + (rank < extra) for rank in range(ranks)]


def draw_alike() -> None:
    """Make all ranks draw the same random numbers from now on: rank 0's."""
    seed = torch.randint(2**62, (), device=device())
    dist.broadcast(seed, 0)
    torch.manual_seed(int(seed))


def _check_shares_nothing(model: SequenceModel) -> None:
    """Refuse layers that share a weight: each is split separately, so their copies would drift apart."""
    users: dict[int, int] = {}
    for place, block in model.numbered():
        for parameter in block.parameters() if isinstance(block, Recurrent) else ():
            other = users.setdefault(id(parameter), place)
            if other != place:
                raise ValueError(f"blocks {other} and {place} share a weight: give each a weight of its own")


def _sharded(block: nn.Module) -> nn.Module:
    return ShardedRecurrent(block) if isinstance(block, Recurrent) else block


def _own_rows(parameter: nn.Parameter, rows: tuple[range, ...]) -> nn.Parameter:
    own = torch.cat([parameter.detach()[each.start : each.stop] for each in rows])
    return nn.Parameter(own, requires_grad=parameter.requires_grad)


def _put_together(part: Tensor, sizes: list[int]) -> Tensor:
    """Return (sequences, hidden) from every rank's (sequences, own). All-gather needs equal parts, so we pad."""
    if not part.shape[0]:
        return part.new_zeros(0, sum(sizes))
    padded = nn.functional.pad(part.detach(), (0, max(sizes) - part.shape[-1]))
    here = padded if can_send_from(padded.device) else padded.cpu()
    everyone = [torch.empty_like(here) for _ in sizes]
    with span("communication"):
        dist.all_gather(everyone, here)
    return torch.cat([other[:, :size] for other, size in zip(everyone, sizes, strict=True)], dim=-1).to(part.device)


def _summed(gradient: Tensor) -> Tensor:
    """Return the sum over ranks."""
    total = gradient.contiguous().clone()
    if total.numel():
        with span("communication"):
            dist.all_reduce(total)
    return total
