"""What one update takes, and what sharding leaves on a rank: seconds and bytes, measured, for every strategy alike."""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch
from torch import Tensor

from course_lib.data import Batch
from course_lib.lstm.alive import saved_for_backward
from course_lib.lstm.memory import Memory
from course_lib.lstm.model import Loss, SequenceModel
from course_lib.planning.sharding import WAYS, ShardedMemory
from course_lib.strategies import DDP, FSDP, Strategy
from course_lib.strategies.fsdp_watch import GatherWatch
from course_lib.strategies.shards import local_part


def seconds_per_update(strategy: Strategy, batch: Batch, repeats: int = 5) -> float:
    """How long one update on this rank's `batch` takes: the median of `repeats`, after two that warm up."""
    times = []
    for _ in range(repeats + 2):
        _wait_for_gpu()
        began = time.monotonic()
        strategy.step(batch)
        _wait_for_gpu()
        times.append(time.monotonic() - began)
    return statistics.median(times[2:])


def measure_memory(strategy: Strategy, batch: Batch) -> Memory:
    """Make one update on this rank's `batch` and see what it held on this rank.

    Activations are what autograd kept for the backward pass at most at one time, each piece of memory counted once,
    without the parameters and the batch.
    """
    batch = batch.to(strategy.device)
    with saved_for_backward(strategy.model, batch.inputs, batch.targets, batch.mask, batch.lengths) as saved:
        strategy.step(batch)
    tensors = [shard.tensor for shard in strategy.shards().values()]
    slots = [value for tensor in tensors for value in strategy.optimizer.state.get(tensor, {}).values()]
    return Memory(
        parameters=sum(map(_bytes, tensors)),
        gradients=sum(_bytes(tensor.grad) for tensor in tensors if tensor.grad is not None),
        optimizer=sum(_bytes(value) for value in slots if isinstance(value, Tensor)),
        activations=saved.peak,
    )


def _bytes(tensor: Tensor) -> int:
    local = local_part(tensor)
    return local.numel() * local.element_size()


def _wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def make_sharded(
    model: SequenceModel, loss: Loss, way: str, *, replicas: int = 1, learning_rate: float = 0.01
) -> Strategy:
    """The strategy for `ddp`, `zero-1`, `zero-2` or `zero-3`, with Adam. Only the last two can have replicas."""
    if way not in WAYS:
        raise ValueError(f"way={way!r}: choose {', '.join(WAYS)}")
    adam = partial(torch.optim.Adam, lr=learning_rate)
    if way == "ddp":
        return DDP(model, adam, loss)
    if way == "zero-1":
        from torch.distributed.optim import ZeroRedundancyOptimizer  # which takes a while to import

        return DDP(model, partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.Adam, lr=learning_rate), loss)
    return FSDP(model, adam, loss, replicas=replicas, reshard_after_forward=way == "zero-3")


def measure_sharding(strategy: Strategy, batch: Batch) -> ShardedMemory:
    """Make one update on this rank's `batch`, and count the bytes of the tensors that it has, and had, on this rank.

    An optimizer's count of steps, one number per parameter, is left out; so are the buckets in which
    DistributedDataParallel keeps a second copy of the gradients.
    """
    watch = None
    if isinstance(strategy, FSDP) and strategy.mesh["shard"].size() > 1:
        watch = GatherWatch(strategy)
    strategy.step(batch)
    parameters = [shard.tensor for shard in strategy.shards().values()]
    return ShardedMemory(
        parameters=sum(map(_bytes, parameters)),
        gradients=sum(_bytes(parameter.grad) for parameter in parameters if parameter.grad is not None),
        optimizer=sum(map(_bytes, _kept_by(strategy))),
        gathered=watch.gathered.peak if watch else 0,
        whole_gradients=watch.gradients.peak if watch else 0,
    )


def _kept_by(strategy: Strategy) -> list[Tensor]:
    """What the optimizer keeps on this rank for every number of a parameter."""
    optimizer = getattr(strategy.optimizer, "optim", strategy.optimizer)  # a ZeroRedundancyOptimizer has one inside
    values = [value for slots in optimizer.state.values() for value in slots.values()]
    return [value for value in values if isinstance(value, Tensor) and value.dim()]
