"""Data parallelism: every rank has the whole model and a share of every batch; gradients are averaged.

With accumulation, a rank runs a share that doesn't fit on its device in micro-batches, and sends the gradients once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from course_lib.core.batch import Batch, check_at_least
from course_lib.core.model import Loss, SequenceModel, States
from course_lib.core.strategy import MakeOptimizer, StatesByMicroBatch, Strategy, sum_over_ranks
from course_lib.runtime.trace import labelled, span


class DataParallel(Strategy):
    """What all data parallelism has in common: a share of the sequences for each rank, and one count of all steps."""

    def share(self, batch: Batch) -> Batch:
        """Return sequences rank, rank + ranks, ...: in a stream's windows, a rank always gets the same streams."""
        return batch.shard(self.rank, self.ranks)

    def sum_counts(self, total: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Sum both over the ranks in one message. The gradients follow during the backward pass."""
        total, count = sum_over_ranks(torch.stack([total, count.to(total.dtype)]))
        return total, count


class DDP(DataParallel):
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
        # A gradient can be sent as soon as its layer's backward pass is done. If one call ran all layers, they would
        # share one backward pass, and every gradient would wait until it ends.
        self.model.one_call = None if self.ranks == 1 else False
        # This copies rank 0's weights to all ranks.
        self.parallel = DistributedDataParallel(self.model, bucket_cap_mb=bucket_cap_mb)

    def forward(self, inputs: Tensor, states: States | None) -> tuple[Tensor, States]:
        return self.parallel(inputs, states)


class TracedDDP(DDP):
    """DDP whose buckets are all-reduced from Python, so that a timeline shows them and `paced_network` can pace them.

    The label of a bucket names the blocks whose gradients it holds, in the order of the backward pass: `5+4`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.block_of = {id(parameter): int(name.split(".")[1]) for name, parameter in self.model.named_parameters()}
        self.parallel.register_comm_hook(None, lambda _, bucket: self.send_bucket(bucket))

    def send_bucket(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Return the future mean of the ranks' buckets."""
        blocks = sorted({self.block_of[id(parameter)] for parameter in bucket.parameters()}, reverse=True)
        with labelled("+".join(map(str, blocks))):
            work: Any = dist.all_reduce(bucket.buffer().div_(self.ranks), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


class Accumulation(DDP):
    """Data parallelism in which each rank runs its share in `micro_batches` pieces before it communicates.

    The loss is divided by the count of the *whole* global batch. The masks give that count before the first forward
    pass, so micro-batches may hold any number of sequences and of counted steps. Only the last micro-batch's backward
    pass sends gradients; the others accumulate theirs inside `no_sync()`, which also covers the forward pass.
    """

    def __init__(
        self, model: SequenceModel, optimizer: MakeOptimizer, loss: Loss, *, micro_batches: int, **options: Any
    ) -> None:
        check_at_least(1, "a share is cut into at least one micro-batch", micro_batches=micro_batches)
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
            with span("backward"):  # the last one also sends the gradients, overlapped
                strategy.backward(its_total, count)
        total = total + its_total.detach()
    return sum_over_ranks(total), count, states
