"""What every strategy can do, whatever it splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from course_lib.data import Batch

MakeOptimizer = Callable[[Iterable[Parameter]], Optimizer]
NamedTensors = dict[str, Tensor]


class Strategy(Protocol):
    """Built from a model, an optimizer factory, a loss and options."""

    def share(self, batch: Batch) -> Batch:
        """What this rank feeds to `step`, of a batch that is meant for all ranks together."""

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One update for the global batch. Returns its loss, divided by the global count, and that count."""

    def full_state(self) -> NamedTensors:
        """The whole model's parameters by name, on the CPU, whatever the split."""

    def full_gradients(self) -> NamedTensors:
        """The gradients of the last step, the same way."""


def state_of(model: Module) -> NamedTensors:
    """A copy of the model's parameters by name, on the CPU. A weight that is used twice has one name."""
    return {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}


def gradients_of(model: Module) -> NamedTensors:
    """A copy of the gradients by name, on the CPU. A parameter that is not trained has none."""
    named = model.named_parameters()
    return {name: parameter.grad.cpu().clone() for name, parameter in named if parameter.grad is not None}


def agree_on_weights(model: Module) -> None:
    """Give every rank rank 0's weights: each made its model from a seed of its own."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)


def gathered(mine: NamedTensors, group: dist.ProcessGroup | None = None) -> NamedTensors:
    """What the ranks of the group have, put together: the parts of a model have the names of the whole."""
    parts: list[NamedTensors] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(parts, mine, group)
    return {name: tensor for part in parts for name, tensor in part.items()}


def clip_gradients(
    model: Module, clip: float, group: dist.ProcessGroup | None = None, replicated: Iterable[Parameter] = ()
) -> None:
    """Clip the gradient of a model of which each rank of the group has a part, by the norm of the whole.

    Parameters that are `replicated`, with the same gradient on every rank, count once.
    """
    everywhere = {id(parameter) for parameter in replicated}
    some_parameter = next(model.parameters())
    once, squares = torch.zeros((2,), dtype=some_parameter.dtype, device=some_parameter.device)
    gradients = [(id(p) in everywhere, p.grad) for p in model.parameters() if p.grad is not None]
    for is_everywhere, gradient in gradients:  # on a rank whose blocks are all frozen, there is none
        (once if is_everywhere else squares).add_(gradient.square().sum())
    dist.all_reduce(squares, group=group)
    scale = (clip / ((squares + once).sqrt() + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ does
    for _, gradient in gradients:
        gradient.mul_(scale)
