"""Models for experiments: layers that take a fixed time, and a whole backward pass in a single autograd node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.core.model import Recurrent, SequenceModel, States
from course_lib.runtime import trace


def pace_layers(model: SequenceModel, forward: float, backward: float) -> SequenceModel:
    """Make each LSTM layer sleep for this many seconds, forward and backward, and return the model.

    Make the layers so small that they spend nearly all of their time asleep. The sleeps are recorded as `forward` and
    `backward` spans, each labeled with the layer's place in the model.
    """
    layers = [place for place, block in model.numbered() if isinstance(block, Recurrent)]
    return pace_blocks(model, dict.fromkeys(layers, (forward, backward)))


def pace_blocks(model: SequenceModel, seconds: Mapping[int, tuple[float, float]]) -> SequenceModel:
    """Like `pace_layers`, but with (forward, backward) seconds for each block, by its place in the model."""
    for place, block in model.numbered():
        if place in seconds:
            block.register_forward_hook(_pause_after(str(place), *seconds[place]))
    return model


def _pause_after(place: str, forward: float, backward: float) -> Any:
    def pause(name: str, seconds: float) -> None:
        with trace.span(name, at_least=seconds, label=place):
            pass

    def after_forward(block: nn.Module, inputs: tuple, outputs: tuple[Tensor, Any]) -> None:
        pause("forward", forward)
        if outputs[0].requires_grad:  # the gradient arrives just before the layer's backward pass
            outputs[0].register_hook(lambda gradient: pause("backward", backward))

    return after_forward


class OneNode(SequenceModel):
    """The same blocks and numbers, but all gradients become available only when the last one has been computed.

    On a GPU, `nn.LSTM(..., num_layers=4)` behaves like this: cuDNN computes the gradients of all layers in one call.
    """

    def forward(self, inputs: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        ended: States = {}
        outputs: Any = _AllAtOnce.apply(super().forward, inputs, states, ended, *self.parameters())
        return outputs, ended


class _AllAtOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: Any, inputs: Tensor, states: States | None, ended: States, *parameters: Tensor):
        with torch.enable_grad():
            ctx.outputs, new_states = blocks(inputs, states)
        ended |= {place: (h.detach(), c.detach()) for place, (h, c) in new_states.items()}
        ctx.parameters = parameters
        return ctx.outputs.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor):
        return None, None, None, None, *torch.autograd.grad(ctx.outputs, ctx.parameters, gradients)
