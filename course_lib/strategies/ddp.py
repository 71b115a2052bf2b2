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

    DistributedDataParallel takes the *mean* of the ranks' gradients. The mean of means is not the mean where ranks
    count different numbers of steps; so each rank's sum is divided by the global count, and multiplied by the
    number of ranks, which the mean then takes away again.

    Gradients travel in buckets of about `bucket_cap_mb` MiB. None leaves that to PyTorch.
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
        # A gradient can be sent when its layer's backward pass is done. One call for all layers would be one backward
        # pass, and every gradient would wait for its end.
        self.model.one_call = None if self.ranks == 1 else False
        # From here on, all have rank 0's weights.
        self.parallel = DistributedDataParallel(self.model, bucket_cap_mb=bucket_cap_mb)

    def share(self, batch: Batch) -> Batch:
        """Sequences rank, rank + ranks, ...: of a stream's windows, always the same streams."""
        return batch.shard(self.rank, self.ranks)

    def sum_counts(self, total: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Both in one message. The gradients follow during the backward pass."""
        total, count = sum_over_ranks(torch.stack([total, count.to(total.dtype)]))
        return total, count

    def forward(self, inputs: Tensor, states: States | None) -> tuple[Tensor, States]:
        return self.parallel(inputs, states)
