"""Hybrid parallelism: replicas of a pipeline. A replica has a share of the batch, and a stage a part of the model.

With shards, a replica is several pipelines that divide the optimizer state among themselves: pipelines with ZeRO-1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from course_lib.core.batch import Batch
from course_lib.core.fast import keep_weights_where_they_are
from course_lib.core.model import Loss, SequenceModel
from course_lib.core.shards import Shard, all_gather, local_rows, reduce_scatter
from course_lib.core.strategy import MakeOptimizer, StatesByMicroBatch, sum_over_ranks
from course_lib.pipeline.pipeline import Pipeline
from course_lib.runtime.trace import span
from course_lib.runtime.words import counted
from course_lib.sharding.mesh import mesh_of


class Hybrid(Pipeline):
    """`replicas` pipelines side by side, on replicas x stages ranks. For the other options, see `Pipeline`.

    Pieces of a replica's share flow through its stages. A stage accumulates its gradients, then sums them over the
    ranks that hold the same stage in the other replicas. The loss is divided once, by the count of the global batch, so
    gradients are *summed*. `inside` sets which ranks are neighbors (on one node, if they fit): the "stages" of a
    replica, or the "replicas" of a stage.

    With `shards`, each replica is `shards` pipelines, on replicas x shards x stages ranks, and each pipeline reads
    different sequences. The ranks that hold the same stage of a replica divide its optimizer state by rows
    (`RowShards`): weights and gradients are whole while the pipeline runs, so micro-batches need no extra messages.
    """

    row_shards: RowShards | None = None

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        replicas: int,
        shards: int = 1,
        inside: str = "stages",
        **options: Any,
    ) -> None:
        self.mesh = mesh_of(replicas, inside=inside, shards=shards)

        def make_optimizer(weights: Iterable[Parameter]) -> Optimizer:
            if shards > 1:  # cut the weights first: some optimizers create their state immediately
                self.row_shards = RowShards(self.stage.part, self.mesh.get_group("shard"))
            return optimizer(weights)

        super().__init__(model, make_optimizer, loss, **options)
        parts = [virtual.part for virtual in self.stage.virtual]
        self.replicas, self.replica = replicas, self.mesh.get_local_rank("replica")
        self.shares, self.share_number = replicas * shards, self.replica * shards
        for part in parts:
            part.one_call = None if self.shares == 1 else False  # as in DDP: layer by layer, to send gradients early
        sizes = {"replica": replicas, "shard": shards, "stage": len(self.stage.ranks)}
        self.mesh_in_words = " x ".join(
            counted(size, name) for name, size in sizes.items() if size > 1 or name != "shard"
        )
        self.replica_group = self.mesh.get_group("replica")
        self.sum_over_replicas = GradientSum(parts, self.replica_group)
        if self.row_shards:
            self.sum_over_replicas.start_sum = self.row_shards.reduce
            self.share_number += self.row_shards.place
            # A replica's ranks hold one model and its optimizer state together.
            by_replica = self.mesh.mesh.movedim((self.mesh.mesh_dim_names or ()).index("replica"), 0).flatten(1)
            group, _ = dist.new_subgroups_by_enumeration(by_replica.tolist())
            assert isinstance(group, dist.ProcessGroup)  # every rank is in one of the subgroups
            self.model_group = group

    def group_of_stages(self) -> dist.ProcessGroup:
        """Return the ranks of this replica."""
        return self.mesh.get_group("stage")

    def share(self, batch: Batch) -> Batch:
        """Return the pipeline's sequences, which are the same for all of its stages."""
        return batch.shard(self.share_number, self.shares)

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        count = sum_over_ranks(batch.mask.sum(), self.replica_group)
        if self.row_shards:
            count = sum_over_ranks(count, self.row_shards.group)
            self.row_shards.gather()  # before any receive is posted, so that no gather waits behind it
        execution = self.execution_of(batch, count, self.sum_over_replicas.start)
        self.sum_over_replicas.begin(list(execution.last_actions))
        total = execution.run()
        return sum_over_ranks(total), count, execution.states  # only the model's last parts have a loss

    def reduce_gradients(self) -> None:
        """Send the gradients that the last backward pass has not sent yet, and wait for the sums."""
        with span("communication"):
            self.sum_over_replicas.finish()
            if self.row_shards:
                self.row_shards.cut()
                if self.replicas > 1:
                    gradients = [weight.grad for weight in self.sum_over_replicas.parameters]
                    for work in [dist.all_reduce(g, group=self.replica_group, async_op=True) for g in gradients]:
                        if work is not None:
                            work.wait()

    def shards(self) -> dict[str, Shard]:
        """Return this rank's shard of each of its stage's parameters: the whole parameter, or this rank's rows."""
        if self.row_shards is None:
            return super().shards()
        if self.row_shards.is_whole:
            self.row_shards.cut()  # it is still whole after a forward pass without a backward pass
        rows, named = self.row_shards.rows, self.model.named_parameters()
        return {
            name: Shard(weight, rows[weight].shape, (rows[weight].local,)) if weight in rows else Shard.whole(weight)
            for name, weight in named
        }


class GradientSum:
    """Sums the gradients of a stage's parameters over a group, *during* the last backward passes of its parts.

    A gradient is sent when it is final, starting with the last layer's, and in the same order on every rank, because
    collectives on different ranks are matched only by their order.
    """

    def __init__(self, parts: Sequence[nn.Module], group: dist.ProcessGroup) -> None:
        backwards = [list(reversed(list(part.parameters()))) for part in parts]
        self.parts = [[weight for weight in weights if weight.requires_grad] for weights in backwards]
        self.parameters: list[Tensor] = []  # in the order in which their gradients are sent
        self.ready: set[Tensor] = set()
        self.sending: list[Any] = []  # of dist.Work
        self.group = group  # read when a sum starts: lesson 07 sets a wrong one
        self.start_sum: Callable[[Tensor], Any] = lambda weight: dist.all_reduce(
            weight.grad, group=self.group, async_op=True
        )
        self.becomes_final: int | None = None

        def note(weight: Tensor, part: int) -> None:
            if part == self.becomes_final:
                self.ready.add(weight)
                self._send()

        for number, weights in enumerate(self.parts):
            for weight in weights:
                weight.register_post_accumulate_grad_hook(lambda weight, part=number: note(weight, part))

    def begin(self, order: Sequence[int]) -> None:
        """Set the order in which the parts' gradients become final in the next step."""
        self.parameters = [weight for part in order for weight in self.parts[part]]

    def start(self, becomes_final: int | None) -> None:
        """Set the part whose gradients are final after the next action, or None."""
        self.becomes_final = becomes_final

    def finish(self) -> None:
        """Send the remaining gradients, and wait for all sums."""
        self.ready.update(self.parameters)
        self._send()
        for work in self.sending:
            work.wait()
        self.ready, self.sending, self.becomes_final = set(), [], None

    def _send(self) -> None:
        while len(self.sending) < len(self.parameters) and self.parameters[len(self.sending)] in self.ready:
            self.sending.append(self.start_sum(self.parameters[len(self.sending)]))


@dataclass
class _Rows:
    """One weight: the memory for all of its rows, padded to the same number for each rank, and pending messages."""

    padded: Tensor
    shape: tuple[int, ...]
    local: range
    gathering: Any = None  # dist.Work
    reduced: Tensor | None = None  # the sum of the gradients of this rank's rows, padded


class RowShards:
    """The weights of a stage whose optimizer state a group of ranks divides, by rows of each weight: ZeRO-1.

    Each rank keeps the optimizer state of its rows and updates only those. A reduce-scatter sums the gradients, so that
    each rank gets its rows, and an all-gather makes the weights whole again: once per update, even with many
    micro-batches. Together they send as many bytes as the all-reduce that they replace.

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
            block.register_forward_pre_hook(lambda block, _: self.wait(block))

    def _padded(self, whole: Tensor) -> Tensor:
        """Return a tensor with the same number of rows for each rank: the whole one, if they can be divided."""
        missing = -len(whole) % self.ranks
        return torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])]) if missing else whole.contiguous()

    def gather(self) -> None:
        """Start gathering all weights, in the model's order; a block waits for its weights when it first runs."""
        if self.is_whole:
            return
        for weight, rows in self.rows.items():
            weight.data = rows.padded[: rows.shape[0]]
            local = rows.padded.chunk(self.ranks)[self.place]
            rows.gathering = all_gather(rows.padded, local, self.group, async_op=True)
        self.is_whole = True

    def wait(self, block: nn.Module) -> None:
        """Wait until the block's weights are whole."""
        self.gather()
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
        rows.reduced = torch.empty_like(padded.chunk(self.ranks)[self.place])
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
