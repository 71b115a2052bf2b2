"""A model whose backward pass is a single node of the autograd graph: what one cuDNN call for all layers is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_lib.lstm.model import SequenceModel, States


class OneNode(SequenceModel):
    """The same blocks and numbers. But no gradient is handed out before the last one has been computed.

    So it is on a GPU with `nn.LSTM(..., num_layers=4)`, where cuDNN computes the gradients of all layers in one call.
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
