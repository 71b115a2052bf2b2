"""ZeRO-1: ranks that train the same weights divide the optimizer state among themselves, by rows of each weight.

Each rank keeps the optimizer state of its rows and updates only those. A reduce-scatter sums the gradients, so that
each rank gets its rows, and an all-gather makes the weights whole again: once per update, even with many micro-batches.
Together they send as many bytes as the all-reduce that they replace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.lstm.fast import keep_weights_where_they_are
from course_lib.lstm.model import SequenceModel
from course_lib.strategies.shards import Shard, all_gather, local_rows, reduce_scatter


@dataclass
class _Rows:
    """One weight: the memory for all of its rows, padded to the same number for each rank, and pending messages."""

    padded: Tensor
    shape: tuple[int, ...]
    local: range
    gathering: Any = None  # dist.Work
    reduced: Tensor | None = None  # the sum of the gradients of this rank's rows, padded


class RowShards:
    """The weights of a model, or of a stage, that a group of ranks trains together.

    While the model computes, its weights are whole. Between two updates a weight *is* this rank's rows, a view of the
    same memory, for the optimizer, checkpoints and clipping. Frozen weights stay whole.
    """

    def __init__(self, model: SequenceModel, group: dist.ProcessGroup) -> None:
        self.group, self.place, self.ranks = group, dist.get_rank(group), dist.get_world_size(group)
        self.rows: dict[Tensor, _Rows] = {}
        for weight in model.parameters():
            if weight.requires_grad and weight.dim():
                local = local_rows(len(weight), self.place, self.ranks)
                # On a GPU, the weight is a part of the buffer that holds a layer's weights for cuDNN.
                self.rows[weight] = _Rows(self._padded(weight.data), tuple(weight.shape), local)
        self.is_whole = True
        self.cut()
        for block in model.blocks.values():
            keep_weights_where_they_are(block)
            block.register_forward_pre_hook(self._before_forward)

    def _padded(self, whole: Tensor) -> Tensor:
        """Return a tensor with the same number of rows for each rank: the whole one, if they can be divided."""
        missing = -len(whole) % self.ranks
        return torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])]) if missing else whole.contiguous()

    def _slice(self, padded: Tensor) -> Tensor:
        """Return this rank's part of a padded tensor. Each rank has the same number of rows."""
        rows_per_rank = len(padded) // self.ranks
        return padded[self.place * rows_per_rank : (self.place + 1) * rows_per_rank]

    def gather(self) -> None:
        """Start gathering all weights, in the model's order; a block waits for its weights when it first runs."""
        if self.is_whole:
            return
        for weight, rows in self.rows.items():
            weight.data = rows.padded[: rows.shape[0]]
            rows.gathering = all_gather(rows.padded, self._slice(rows.padded), self.group, async_op=True)
        self.is_whole = True

    def _before_forward(self, block: nn.Module, inputs: Any) -> None:
        self.gather()
        self.wait(block)

    def wait(self, block: nn.Module) -> None:
        """Wait until the block's weights are whole."""
        for weight in block.parameters():
            rows = self.rows.get(weight)
            if rows and rows.gathering is not None:
                rows.gathering.wait()
                rows.gathering = None

    def reduce(self, weight: Tensor) -> Any:
        """Start summing a weight's gradient over the group. Returns the `dist.Work` to wait for before `cut`."""
        gradient, rows = weight.grad, self.rows.get(weight)
        assert gradient is not None
        if rows is None:
            return dist.all_reduce(gradient, group=self.group, async_op=True)
        padded = self._padded(gradient)
        rows.reduced = torch.empty_like(self._slice(padded))
        return reduce_scatter(rows.reduced, padded, group=self.group, async_op=True)

    def cut(self) -> None:
        """Cut every weight down to this rank's rows. Its gradient becomes the reduced one for these rows, or None."""
        for weight, rows in self.rows.items():
            if rows.gathering is not None:
                rows.gathering.wait()
            reduced, rows.reduced, rows.gathering = rows.reduced, None, None
            weight.grad = None
            weight.data = rows.padded[rows.local.start : rows.local.stop]
            weight.grad = None if reduced is None else reduced[: len(rows.local)]
        self.is_whole = False

    def memory_of(self, weight: Tensor) -> Tensor:
        """Return the tensor that holds a weight in this rank's memory, with all of its rows."""
        rows = self.rows.get(weight)
        return weight if rows is None else rows.padded

    def shard_of(self, weight: Tensor) -> Shard:
        """Return this rank's rows of a weight, or all of it if it is not divided."""
        rows = self.rows.get(weight)
        return Shard.whole(weight) if rows is None else Shard(weight, rows.shape, (rows.local,))
