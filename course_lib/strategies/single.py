"""One device, one process: the reference that every other strategy is compared with."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from course_lib.data import Batch
from course_lib.loss import Loss
from course_lib.machine import device
from course_lib.model import SequenceModel, States, detached
from course_lib.strategies.strategy import MakeOptimizer, NamedTensors, gradients_of, state_of
from course_lib.trace import span


class Single:
    """Forward, backward, update.

    With `carry_state`, a batch begins in the state in which the previous one ended (and the gradient stops there):
    for streams of text. With `autocast`, the forward pass computes in that dtype (`torch.bfloat16`).
    """

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        carry_state: bool = False,
        clip: float | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.device = device()
        self.model = model.to(self.device)
        self.optimizer = optimizer(self.model.parameters())
        self.loss, self.carry_state, self.clip, self.autocast = loss, carry_state, clip, autocast
        self.states: States = {}

    def share(self, batch: Batch) -> Batch:
        return batch

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One update. Returns the loss per counted step, and how many steps counted; both on the device."""
        batch = batch.to(self.device, non_blocking=True)
        self.optimizer.zero_grad()
        with span("forward"), self.precision():
            outputs, states = self.model(batch.inputs, self.states)
            total, count = self.loss(outputs.float() if self.autocast else outputs, batch)
            loss = total / count.clamp(min=1)  # a batch in which nothing counts moves nothing
        with span("backward"):
            loss.backward()
        with span("update"):
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
        self.states = detached(states) if self.carry_state else {}
        return loss.detach(), count

    def full_state(self) -> NamedTensors:
        return state_of(self.model)

    def full_gradients(self) -> NamedTensors:
        return gradients_of(self.model)

    def precision(self) -> contextlib.AbstractContextManager:
        """The context in which the forward pass computes."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)
