"""Watch a sharded model gather and drop its blocks: when, in which order, and how many bytes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.strategies.fsdp import FSDP, sharded_modules
from course_lib.strategies.shards import is_sharded
from course_lib.trace import span

# torch 2.13 renamed these two functions.
ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(frozen=True)
class GatherPace:
    """The minimum seconds of each operation, for every block: for ranks that don't have a device each."""

    gather: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    scatter: float = 0.0


@dataclass
class HeldBytes:
    """The bytes held now, and their peak."""

    now: int = 0
    peak: int = 0

    def add(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


class GatherWatch:
    """Records what happens to each block of a sharded model, as spans labeled with the block's place.

    The spans are `all-gather`, `forward` and `drop`, then `all-gather`, `backward`, `drop` and `reduce-scatter`.
    All-gathers block here; on a GPU they overlap with the computation. `gathered` counts the bytes of gathered blocks
    (from the buffers that the messages fill), and `gradients` those of whole gradients until they are reduced.
    """

    def __init__(self, strategy: FSDP, pace: GatherPace | None = None) -> None:
        if strategy.mesh["shard"].size() == 1:
            raise ValueError("every rank has the whole model, so nothing is gathered: give more ranks than replicas")
        self.gathered, self.gradients = HeldBytes(), HeldBytes()
        gathered_alone = set(sharded_modules(strategy.model))
        for place, block in strategy.model.numbered():
            if block not in gathered_alone:
                raise ValueError(f"block {place} shares a weight and is not gathered alone: watch a model without")
            _WatchedBlock(str(place), block, self, pace or GatherPace())


class _WatchedBlock:
    """The hooks of one block, around those with which `fully_shard` gathers and drops it."""

    def __init__(self, place: str, block: Any, watch: GatherWatch, pace: GatherPace) -> None:
        self.place, self.watch, self.pace = place, watch, pace
        self.bytes = 0  # while it is gathered
        self.working: AbstractContextManager[None] | None = None
        block.set_custom_all_gather(_AllGather(self))
        block.set_custom_reduce_scatter(_ReduceScatter(self))
        block.register_forward_pre_hook(lambda *_: self.begin("forward", pace.forward))
        block.register_forward_hook(lambda *_: self.end(), prepend=True)
        block.register_forward_hook(self.after_forward)

    def begin(self, name: str, seconds: float) -> None:
        self.working = span(name, at_least=seconds, label=self.place)
        self.working.__enter__()

    def end(self) -> None:
        if self.working is not None:
            self.working.__exit__(None, None, None)
            self.working = None

    def after_forward(self, block: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if all(is_sharded(parameter) for parameter in block.parameters()):
            self.drop()
        if outputs[0].requires_grad:  # this hook runs after the one that gathers the block again
            outputs[0].register_hook(lambda gradient: self.begin("backward", self.pace.backward))

    def drop(self) -> None:
        with span("drop", label=self.place):
            self.watch.gathered.add(-self.bytes)
            self.bytes = 0


@dataclass(frozen=True)
class _Messages:
    """The interface that `fully_shard` expects of a custom collective: how to allocate a buffer."""

    block: _WatchedBlock

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Messages):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        self.block.bytes = _bytes(output_tensor)
        self.block.watch.gathered.add(self.block.bytes)
        with span("all-gather", at_least=self.block.pace.gather, label=self.block.place):
            ALL_GATHER(output_tensor, input_tensor, group)


class _ReduceScatter(_Messages):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        self.block.end()  # of the backward pass
        self.block.drop()
        self.block.watch.gradients.add(_bytes(input_tensor))
        with span("reduce-scatter", at_least=self.block.pace.scatter, label=self.block.place):
            REDUCE_SCATTER(output_tensor, input_tensor, op, group)
        self.block.watch.gradients.add(-_bytes(input_tensor))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
