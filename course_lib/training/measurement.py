"""What one update takes: seconds and bytes, measured. For every strategy alike."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from course_lib.data import Batch
from course_lib.lstm.alive import saved_for_backward
from course_lib.lstm.memory import Memory
from course_lib.strategies import Strategy
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
