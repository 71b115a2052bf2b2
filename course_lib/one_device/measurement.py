"""Measure an update of any strategy: its seconds and its memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from course_lib.core.batch import Batch
from course_lib.core.memory import Memory
from course_lib.core.metering import saved_for_backward
from course_lib.core.shards import local_part
from course_lib.core.strategy import Strategy
from course_lib.runtime.machine import wait_for_gpu


def seconds_per_update(strategy: Strategy, batch: Batch, repeats: int = 5) -> float:
    """Return the seconds of one update on this rank's `batch`: the median of `repeats`, after two warm-up updates."""
    times = []
    for _ in range(repeats + 2):
        wait_for_gpu()
        started_at = time.monotonic()
        strategy.step(batch)
        wait_for_gpu()
        times.append(time.monotonic() - started_at)
    return statistics.median(times[2:])


def measure_memory(strategy: Strategy, batch: Batch) -> Memory:
    """Run one update on this rank's `batch`, and return the memory that it used on this rank.

    Activations are the peak of what autograd saved for the backward pass, each storage counted once, without the
    parameters and the batch. With ZeRO-1, parameters and gradients count in full, as during the update.
    """
    batch = batch.to(strategy.device)
    has_onednn = torch.backends.mkldnn.enabled  # PyTorch switches it off for good if a CPU cannot compute in bfloat16
    with saved_for_backward(strategy.model, batch.inputs, batch.targets, batch.mask, batch.lengths) as saved:
        strategy.step(batch)
    torch.backends.mkldnn.enabled = has_onednn
    tensors, shards = [shard.tensor for shard in strategy.shards().values()], getattr(strategy, "row_shards", None)
    stored = [shards.rows[tensor].padded if shards and tensor in shards.rows else tensor for tensor in tensors]
    slots = [value for tensor in tensors for value in strategy.optimizer.state.get(tensor, {}).values()]
    return Memory(
        parameters=local_bytes(stored),
        gradients=local_bytes(full for full, tensor in zip(stored, tensors, strict=True) if tensor.grad is not None),
        optimizer=local_bytes(value for value in slots if isinstance(value, Tensor)),
        activations=saved.peak,
    )


def local_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes that this rank holds of these tensors."""
    return sum(local_part(tensor).nbytes for tensor in tensors)
