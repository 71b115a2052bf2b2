"""Tensor parallelism: every LSTM layer is cut inside its cell; each rank computes some of its hidden units.

The four gates of a hidden unit need the *whole* previous h, but only their own rows of the matrices, and the unit's own
c. So the rows can be shared out by unit. The price: after every time step, all ranks need all of h, before any of
them can begin the next.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.data import Batch
from course_lib.edges import can_carry
from course_lib.loss import Loss
from course_lib.machine import device
from course_lib.model import Recurrent, SequenceModel, State, States, detached
from course_lib.strategies.strategy import (
    MakeOptimizer,
    NamedTensors,
    agree_on_weights,
    clip_gradients,
    gradients_of,
    state_of,
)
from course_lib.trace import span

GATES = 4


class ShardedRecurrent(nn.Module):
    """One LSTM layer of which this rank has some hidden units. It takes and returns what `Recurrent` does, whole.

    Inputs, outputs and states are the same on all ranks, and so are their gradients.
    """

    def __init__(self, whole: Recurrent) -> None:
        super().__init__()
        self.width = whole.width
        self.sizes = shares(whole.width, dist.get_world_size())
        named = whole.lstm.named_parameters()
        self.lstm = nn.ParameterDict({name: _own_rows(parameter, self.sizes) for name, parameter in named})

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        own = self.lstm
        if state is None:
            state = (inputs.new_zeros(1, inputs.shape[1], self.width),) * 2
        inputs, h, c = (UsedInParts.apply(tensor) for tensor in (inputs, state[0][0], state[1][0]))
        c = c.split(self.sizes, dim=-1)[dist.get_rank()]
        from_inputs = nn.functional.linear(inputs, own["weight_ih_l0"], own["bias_ih_l0"] + own["bias_hh_l0"])
        outputs = []
        for gates in from_inputs:  # there is no way around this loop: a step needs the one before
            i, f, g, o = (gates + h @ own["weight_hh_l0"].t()).chunk(GATES, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h, output = Whole.apply(o.sigmoid() * c.tanh(), self.sizes)
            outputs.append(output)
        return torch.stack(outputs), (output[None], Whole.apply(c, self.sizes)[1][None])


class UsedInParts(torch.autograd.Function):
    """Forward: nothing. Backward: the sum over ranks, for each knows only the gradient that its own units caused."""

    @staticmethod
    def forward(context: Any, whole: Tensor) -> Tensor:
        return whole.view_as(whole)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _summed(gradient)


class Whole(torch.autograd.Function):
    """Forward: every rank's part, put together, twice: for the next step's gates, and as the layer's output.

    Backward: the gates are computed in parts, so that their gradient is a sum over ranks; what comes back through
    the output is the same on all ranks already, and must not be added up. Of both, the rank's own units.
    """

    @staticmethod
    def forward(context: Any, part: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        context.sizes = sizes
        context.set_materialize_grads(False)  # after the last step there are no gates: nothing to add up, nor to send
        whole = _put_together(part, sizes)
        return whole, whole.clone()

    @staticmethod
    def backward(context: Any, from_gates: Tensor | None, from_output: Tensor | None) -> tuple[Tensor | None, None]:
        parts = [_summed(from_gates)] if from_gates is not None else []
        parts += [from_output] if from_output is not None else []
        return (sum(parts).split(context.sizes, dim=-1)[dist.get_rank()] if parts else None), None


class TensorParallel:
    """Every LSTM layer cut by hidden unit; the other blocks are replicated.

    Replicated blocks need no all-reduce: they see the same whole activations on every rank, and, behind `UsedInParts`
    and `Whole`, the same whole gradients. So each rank computes all of their gradient, and the same one.
    (Where a GPU adds up in an order of its own, as for an embedding's gradient, replicas may differ in the last bits.)
    """

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        carry_state: bool = False,
        clip: float | None = None,
    ) -> None:
        self.device = device()
        agree_on_weights(model)
        self.model = SequenceModel({place: _sharded(block) for place, block in model.numbered()}).to(self.device)
        self.optimizer = optimizer(self.model.parameters())
        self.loss, self.carry_state, self.clip = loss, carry_state, clip
        self.states: States = {}

    def share(self, batch: Batch) -> Batch:
        """The whole batch: every rank computes some units of all of it."""
        return batch

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One update for the batch. Returns the same on all ranks."""
        batch = batch.to(self.device, non_blocking=True)
        self.optimizer.zero_grad()
        with span("forward"):
            outputs, states = self.model(batch.inputs, self.states)
            total, count = self.loss(outputs, batch)
            loss = total / count.clamp(min=1)
        with span("backward"):
            loss.backward()
        with span("update"):
            if self.clip is not None:
                replicated = [p for name, p in self.model.named_parameters() if not self._is_in_parts(name)]
                clip_gradients(self.model, self.clip, replicated=replicated)
            self.optimizer.step()
        self.states = detached(states) if self.carry_state else {}
        return loss.detach(), count

    def full_state(self) -> NamedTensors:
        return self._put_together(state_of(self.model))

    def full_gradients(self) -> NamedTensors:
        return self._put_together(gradients_of(self.model))

    def _put_together(self, mine: NamedTensors) -> NamedTensors:
        """The layers' matrices from every rank's rows; the rest is the same everywhere."""
        everyone: list[NamedTensors] = [{}] * dist.get_world_size()
        dist.all_gather_object(everyone, {name: mine[name] for name in mine if self._is_in_parts(name)})
        return {
            name: _joined([part[name] for part in everyone]) if self._is_in_parts(name) else tensor
            for name, tensor in mine.items()
        }

    def _is_in_parts(self, name: str) -> bool:
        """Whether the parameter of that name belongs to a layer that is cut."""
        _, place, _ = name.split(".", 2)
        return isinstance(self.model.blocks[place], ShardedRecurrent)


def shares(units: int, ranks: int) -> list[int]:
    """How many of the units each rank has: as equal as possible; the first have one more if it does not divide."""
    each, extra = divmod(units, ranks)
    return [each + (rank < extra) for rank in range(ranks)]


def _sharded(block: nn.Module) -> nn.Module:
    return ShardedRecurrent(block) if isinstance(block, Recurrent) else block


def _own_rows(parameter: nn.Parameter, sizes: list[int]) -> nn.Parameter:
    """Of each gate's rows, those of this rank's units. The four gates lie one below the other."""
    gates = parameter.detach().chunk(GATES)
    own = torch.cat([gate.split(sizes)[dist.get_rank()] for gate in gates])
    return nn.Parameter(own, requires_grad=parameter.requires_grad)


def _joined(parts: list[Tensor]) -> Tensor:
    """The whole from every rank's rows: gate by gate, and in each the ranks' units in order."""
    return torch.cat([rows for gate in zip(*(part.chunk(GATES) for part in parts), strict=True) for rows in gate])


def _put_together(part: Tensor, sizes: list[int]) -> Tensor:
    """(sequences, hidden) from every rank's (sequences, own). All-gather wants equal parts: smaller ones are padded."""
    if not part.shape[0]:
        return part.new_zeros(0, sum(sizes))
    padded = nn.functional.pad(part.detach(), (0, max(sizes) - part.shape[-1]))
    here = padded if can_carry(padded.device) else padded.cpu()
    everyone = [torch.empty_like(here) for _ in sizes]
    with span("communication"):
        dist.all_gather(everyone, here)
    return torch.cat([other[:, :size] for other, size in zip(everyone, sizes, strict=True)], dim=-1).to(part.device)


def _summed(gradient: Tensor) -> Tensor:
    """The sum over ranks."""
    total = gradient.contiguous().clone()
    if total.numel():
        with span("communication"):
            dist.all_reduce(total)
    return total
