"""Data parallelism: every rank has the whole model and a share of every batch; gradients are averaged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from course_lib.data import Batch
from course_lib.lstm.model import Loss, SequenceModel, States
from course_lib.strategies.base import MakeOptimizer, Strategy, sum_over_ranks


class DDP(Strategy):
    """PyTorch's DistributedDataParallel, with the loss divided once, by the global count.

    DistributedDataParallel takes the *mean* of the ranks' gradients. If ranks count different numbers of steps, the
    mean of their means is not the global mean. So each rank divides its summed loss by the global count and multiplies
    it by the number of ranks, which the averaging then cancels.

    Gradients travel in buckets of about `bucket_cap_mb` MiB; None uses PyTorch's default.
    """

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        bucket_cap_mb: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, loss, **options)
        self.gradient_scale = self.shares = self.ranks
        self.share_number = self.rank
        # A gradient can be sent as soon as its layer's backward pass is done. If one call ran all layers, they would
        # share one backward pass, and every gradient would wait until it ends.
        self.model.one_call = None if self.ranks == 1 else False
        # DDP copies rank 0's weights to all ranks.
        self.parallel = DistributedDataParallel(self.model, bucket_cap_mb=bucket_cap_mb)

    def share(self, batch: Batch) -> Batch:
        """Return sequences rank, rank + ranks, ...: in a stream's windows, a rank always gets the same streams."""
        return batch.shard(self.rank, self.ranks)

    def sum_counts(self, total: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Sum both over the ranks in one message. The gradients follow during the backward pass."""
        total, count = sum_over_ranks(torch.stack([total, count.to(total.dtype)]))
        return total, count

    def forward(self, inputs: Tensor, states: States | None) -> tuple[Tensor, States]:
        return self.parallel(inputs, states)
