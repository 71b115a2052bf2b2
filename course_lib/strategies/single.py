"""One device, one process: the reference that every other strategy is compared with."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from course_lib.lstm.loss import Loss
from course_lib.lstm.model import SequenceModel, States
from course_lib.strategies.base import MakeOptimizer, Strategy


class Single(Strategy):
    """Forward, backward, update. With `autocast`, the forward pass computes in that dtype (`torch.bfloat16`)."""

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        autocast: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, loss, **options)
        self.autocast = autocast

    def forward(self, inputs: Tensor, states: States | None) -> tuple[Tensor, States]:
        outputs, states = super().forward(inputs, states)
        return outputs.float() if self.autocast else outputs, states  # a sum of many small losses needs the digits

    def precision(self) -> contextlib.AbstractContextManager:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)
