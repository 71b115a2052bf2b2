"""Gradient accumulation: run a share that is too large for the device in micro-batches, and send gradients once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.data import Batch
from course_lib.lstm.model import Loss, SequenceModel
from course_lib.strategies.base import MakeOptimizer, StatesByMicroBatch, Strategy, sum_over_ranks
from course_lib.strategies.ddp import DDP
from course_lib.trace import span


class Accumulation(DDP):
    """Data parallelism in which each rank runs its share in `micro_batches` pieces before it communicates.

    The loss is divided by the count of the *whole* global batch. The masks give that count before the first forward
    pass, so micro-batches may hold any number of sequences and of counted steps. Only the last micro-batch's backward
    pass sends gradients; the others accumulate theirs inside `no_sync()`, which also covers the forward pass.
    """

    def __init__(
        self, model: SequenceModel, optimizer: MakeOptimizer, loss: Loss, *, micro_batches: int, **options: Any
    ) -> None:
        check_micro_batches(micro_batches)
        super().__init__(model, optimizer, loss, **options)
        self.micro_batches = micro_batches

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        return accumulate(self, batch, self.parallel.no_sync)


def accumulate(
    strategy: Strategy, batch: Batch, without_sending: Callable[[], contextlib.AbstractContextManager]
) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
    """`forward_backward` in the strategy's micro-batches, all but the last one inside `without_sending()`."""
    count = sum_over_ranks(batch.mask.sum())
    total, states = torch.zeros((), device=strategy.device), {}
    for place, micro_batch in enumerate(batch.micro_batches(strategy.micro_batches)):
        is_last = place == strategy.micro_batches - 1
        with contextlib.nullcontext() if is_last else without_sending():
            with span("forward"), strategy.precision():
                outputs, states[place] = strategy.forward(micro_batch.inputs, strategy.states.get(place))
                its_total, _ = strategy.checked_loss(outputs, micro_batch)
            with span("backward"):  # of the last one: and, overlapped with it, what becomes of the gradients
                strategy.backward(its_total, count)
        total = total + its_total.detach()
    return sum_over_ranks(total), count, states


def check_micro_batches(micro_batches: int) -> None:
    """Raise ValueError if there is less than one micro-batch."""
    if micro_batches < 1:
        raise ValueError(f"micro_batches={micro_batches}: a share is cut into at least one micro-batch")
