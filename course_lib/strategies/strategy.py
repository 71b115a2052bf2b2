"""What every strategy can do, whatever it splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

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
