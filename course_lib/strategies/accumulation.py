"""Gradient accumulation: a share too large for the device is run in micro-batches, and sent once."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from course_lib.data import Batch
from course_lib.loss import Loss
from course_lib.machine import device
from course_lib.model import SequenceModel, States, detached
from course_lib.strategies.strategy import MakeOptimizer, NamedTensors, gradients_of, state_of
from course_lib.trace import span


class Accumulation:
    """Data parallelism in which each rank runs its share in `micro_batches` pieces before it communicates.

    The loss is divided by the count of the *whole* global batch, which is known before the first forward pass: it is
    in the masks. Micro-batches may then hold any number of sequences and of steps that count. Only the backward pass
    of the last one sends gradients; the others add theirs up, inside `no_sync()`, forward pass included.
    """

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        micro_batches: int,
        carry_state: bool = False,
        clip: float | None = None,
    ) -> None:
        if micro_batches < 1:
            raise ValueError(f"micro_batches={micro_batches}: a share is cut into at least one micro-batch")
        self.device = device()
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.model = model.to(self.device)
        self.parallel = DistributedDataParallel(self.model)
        self.optimizer = optimizer(self.model.parameters())
        self.loss, self.carry_state, self.clip = loss, carry_state, clip
        self.micro_batches = micro_batches
        self.states: dict[int, States] = {}  # per micro-batch

    def share(self, batch: Batch) -> Batch:
        """Sequences rank, rank + ranks, ...: of a stream's windows, always the same streams."""
        return batch.shard(self.rank, self.ranks)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One update for the global batch, of which `batch` is this rank's share."""
        micro_batches = batch.micro_batches(self.micro_batches)
        global_count = batch.mask.sum().to(self.device)
        with span("communication"):
            dist.all_reduce(global_count)
        self.optimizer.zero_grad()
        global_total = sum(
            self._accumulate(place, micro_batch.to(self.device, non_blocking=True), global_count.clamp(min=1))
            for place, micro_batch in enumerate(micro_batches)
        )
        with span("communication"):
            dist.all_reduce(global_total)
        with span("update"):
            if self.clip is not None:  # here and not before: the norm is that of the whole batch's gradient
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
        return global_total / global_count.clamp(min=1), global_count

    def full_state(self) -> NamedTensors:
        return state_of(self.model)

    def full_gradients(self) -> NamedTensors:
        return gradients_of(self.model)

    def _accumulate(self, place: int, micro_batch: Batch, global_count: Tensor) -> Tensor:
        """Forward and backward of one micro-batch: adds to the gradients, and returns its part of the sum of losses."""
        is_last = place == self.micro_batches - 1
        with contextlib.nullcontext() if is_last else self.parallel.no_sync():
            with span("forward"):
                outputs, states = self.parallel(micro_batch.inputs, self.states.get(place))
                total, _ = self.loss(outputs, micro_batch)
            with span("backward"):  # of the last one: and, overlapped with it, the all-reduce of the gradients
                (total * self.ranks / global_count).backward()
        self.states[place] = detached(states) if self.carry_state else {}
        return total.detach()
