"""Data parallelism: every rank has the whole model and a share of every batch; gradients are averaged."""

from __future__ import annotations

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


class DDP:
    """PyTorch's DistributedDataParallel, with the loss divided once, by the global count.

    DistributedDataParallel takes the *mean* of the ranks' gradients. The mean of means is not the mean where ranks
    count different numbers of steps; so each rank's sum is divided by the global count, and multiplied by the
    number of ranks, which the mean then takes away again.
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
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.model = model.to(self.device)
        self.parallel = DistributedDataParallel(self.model)  # from here on, all have rank 0's weights
        self.optimizer = optimizer(self.model.parameters())
        self.loss, self.carry_state, self.clip = loss, carry_state, clip
        self.states: States = {}

    def share(self, batch: Batch) -> Batch:
        """Sequences rank, rank + ranks, ...: of a stream's windows, always the same streams."""
        return batch.shard(self.rank, self.ranks)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One update for the global batch, of which `batch` is this rank's share."""
        batch = batch.to(self.device, non_blocking=True)
        self.optimizer.zero_grad()
        with span("forward"):
            outputs, states = self.parallel(batch.inputs, self.states)
            total, count = self.loss(outputs, batch)
        with span("communication"):
            sums = torch.stack([total.detach(), count.to(total.dtype)])
            dist.all_reduce(sums)
            global_total, global_count = sums
        with span("backward"):  # and, overlapped with it, the all-reduce of the gradients
            (total * self.ranks / global_count.clamp(min=1)).backward()
        with span("update"):
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
        self.states = detached(states) if self.carry_state else {}
        return global_total / global_count.clamp(min=1), global_count

    def full_state(self) -> NamedTensors:
        return state_of(self.model)

    def full_gradients(self) -> NamedTensors:
        return gradients_of(self.model)
