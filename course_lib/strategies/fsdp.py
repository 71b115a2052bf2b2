"""Sharding: every rank stores a piece of each parameter, and gathers a block only while that block runs."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.data import Batch
from course_lib.lstm.model import Loss, SequenceModel
from course_lib.machine import device
from course_lib.strategies.accumulation import accumulate, check_micro_batches
from course_lib.strategies.base import (
    MakeOptimizer,
    StatesByMicroBatch,
    Strategy,
    blocks_of,
    broadcast_weights,
    sum_over_ranks,
)
from course_lib.strategies.hybrid import mesh_of
from course_lib.strategies.shards import Shard

if TYPE_CHECKING:  # importing it takes a second
    from torch.distributed.fsdp import FSDPModule


class FSDP(Strategy):
    """PyTorch's `fully_shard` on every block, with the loss divided once, by the global count.

    A rank gets the same sequences as with DDP, but stores only its rows of the parameters, gradients and optimizer
    state. Before a block runs, its parameters are gathered from all ranks, and dropped afterwards. The backward pass
    gathers them again, and a reduce-scatter sums the gradients into their owners' rows.

    With `reshard_after_forward=False` the parameters stay whole from the forward to the backward pass: one all-gather
    less, at the cost of the whole model's memory. With `replicas`, the model is sharded over ranks / replicas ranks,
    and the replicas sum their gradients: hybrid sharding. The ranks of one replica are neighbors, in one node if they
    fit. With `micro_batches`, gradients stay whole until the last one and are sent once. With `autocast`, blocks are
    gathered in that dtype, which halves the bytes to send and to store. Gradients are summed in float32.
    """

    applies_precision = True  # blocks are gathered in the requested precision

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        replicas: int = 1,
        reshard_after_forward: bool = True,
        micro_batches: int = 1,
        **options: Any,
    ) -> None:
        check_micro_batches(micro_batches)
        self.mesh = mesh_of(replicas, "shard")
        model = model.to(device())
        untried = [replace(block, module=copy.deepcopy(block.module)) for block in blocks_of(model)]  # still whole
        broadcast_weights(model)  # fully_shard keeps each rank's rows of that rank's weights
        shard_blocks(model, self.mesh, reshard_after_forward, options.get("autocast"))
        super().__init__(model, optimizer, loss, **options)
        self.untried = untried
        self.model_group = self.mesh.get_group("shard")
        self.micro_batches, self.shares, self.share_number = micro_batches, self.ranks, self.rank

    def share(self, batch: Batch) -> Batch:
        """Return sequences rank, rank + ranks, ..., as in DDP: ranks that share one model read different ones."""
        return batch.shard(self.rank, self.ranks)

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        if self.micro_batches == 1:
            return super().forward_backward(batch)
        return accumulate(self, batch, self.without_sending)

    def sum_counts(self, total: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Sum both over the ranks in one message. The gradients follow during the backward pass."""
        total, count = sum_over_ranks(torch.stack([total, count.to(total.dtype)]))
        return total, count

    def precision(self) -> contextlib.AbstractContextManager:
        """Return a context that does nothing: gathered blocks are already in the requested precision."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def without_sending(self) -> Iterator[None]:
        """In this context, backward passes keep their whole gradients on the rank."""
        root = sharded_modules(self.model)[0]  # its setting holds for the modules inside
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)

    def shards(self) -> dict[str, Shard]:
        """Return this rank's rows of each parameter."""
        for module in sharded_modules(self.model):
            module.reshard()  # a forward pass without a backward pass may have left it gathered
        place, ranks = self.mesh.get_local_rank("shard"), self.mesh["shard"].size()
        return {
            name: Shard(parameter, tuple(parameter.shape), (own_rows(len(parameter), place, ranks),))
            for name, parameter in self.model.named_parameters()
        }


def shard_blocks(
    model: SequenceModel, mesh: DeviceMesh, reshard_after_forward: bool, autocast: torch.dtype | None = None
) -> None:
    """Shard each block separately, so that only one is gathered at a time. Blocks that share a weight form one unit."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    users = Counter(id(parameter) for block in model.blocks.values() for parameter in block.parameters())
    *_, last = model.blocks.values()
    policy = MixedPrecisionPolicy(param_dtype=autocast, reduce_dtype=torch.float32 if autocast else None)
    for block in model.blocks.values():
        keep_weights_where_they_are(block)
        if all(users[id(parameter)] == 1 for parameter in block.parameters()):
            # The backward pass starts with the last block: if it were dropped, it would be gathered again at once.
            drop = reshard_after_forward and block is not last
            fully_shard(block, mesh=mesh, reshard_after_forward=drop, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard_after_forward, mp_policy=policy)
    # PyTorch warns about in-place writes if the last block returns a view. We never write to it.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    model.one_call = False  # one call for several layers would need all of them gathered at once
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)  # a sum: each rank's loss is already divided by the global count
        module.set_force_sum_reduction_for_comms(True)  # gloo can sum, but cannot scale during a collective


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """Return the modules that are gathered and dropped separately."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def own_rows(rows: int, place: int, ranks: int) -> range:
    """Return the rows of a parameter on the rank at `place`. As in `torch.chunk`, the last may have fewer or none."""
    each = -(-rows // ranks)
    return range(min(rows, place * each), min(rows, (place + 1) * each))


def keep_weights_where_they_are(block: nn.Module) -> None:
    """Turn off `flatten_parameters` in the LSTMs of a block.

    On a GPU, `nn.LSTM` moves its weights into one contiguous buffer whenever they are new tensors, which they are after
    every all-gather. The next all-gather then fills the *old* memory, while the layer computes with the moved copy:
    from the second update on it would train on stale weights, without an error. The price is that cuDNN copies the
    weights together at each call. Its warning recommends `flatten_parameters`, so we hide it.
    """
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk", UserWarning)
    for module in block.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters = _leave_it  # pyright: ignore[reportAttributeAccessIssue]


def _leave_it() -> None:
    """Do nothing."""
