"""Measure the seconds of one update and the bytes that sharding leaves on a rank, for any strategy."""

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
    """Return the seconds of one update on this rank's `batch`: the median of `repeats`, after two warm-up updates."""
    times = []
    for _ in range(repeats + 2):
        _wait_for_gpu()
        began = time.monotonic()
        strategy.step(batch)
        _wait_for_gpu()
        times.append(time.monotonic() - began)
    return statistics.median(times[2:])


def measure_memory(strategy: Strategy, batch: Batch) -> Memory:
    """Run one update on this rank's `batch`, and return the memory that it used on this rank.

    Activations are the peak of what autograd saved for the backward pass, each storage counted once, without the
    parameters and the batch.
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
    """Return the strategy for `ddp`, `zero-1`, `zero-2` or `zero-3`, with Adam. Only the last two support replicas."""
    if way not in WAYS:
        raise ValueError(f"way={way!r}: choose {', '.join(WAYS)}")
    adam = partial(torch.optim.Adam, lr=learning_rate)
    if way == "ddp":
        return DDP(model, adam, loss)
    if way == "zero-1":
        from torch.distributed.optim import ZeroRedundancyOptimizer  # a slow import

        return DDP(model, partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.Adam, lr=learning_rate), loss)
    return FSDP(model, adam, loss, replicas=replicas, reshard_after_forward=way == "zero-3")


def measure_sharding(strategy: Strategy, batch: Batch) -> ShardedMemory:
    """Run one update on this rank's `batch`, and return the bytes of its tensors on this rank.

    This leaves out the optimizer's step count, one number per parameter, and the buckets in which
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
    """Return the optimizer state on this rank: the tensors with one number per number of a parameter."""
    optimizer = getattr(strategy.optimizer, "optim", strategy.optimizer)  # a ZeroRedundancyOptimizer wraps one
    values = [value for slots in optimizer.state.values() for value in slots.values()]
    return [value for value in values if isinstance(value, Tensor) and value.dim()]
