"""Hybrid parallelism: replicas of a pipeline. A replica has a share of the batch, and a stage a part of the model.

With shards, a replica is several pipelines that divide the optimizer state among themselves: pipelines with ZeRO-1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from course_lib.data import Batch
from course_lib.lstm.model import Loss, SequenceModel
from course_lib.strategies.base import MakeOptimizer, StatesByMicroBatch, sum_over_ranks
from course_lib.strategies.mesh import group_of_each_replica, mesh_in_words, mesh_of
from course_lib.strategies.pipeline import Pipeline
from course_lib.strategies.shards import Shard
from course_lib.strategies.zero import RowShards
from course_lib.trace import span


class Hybrid(Pipeline):
    """`replicas` pipelines side by side, on replicas x stages ranks. For the other options, see `Pipeline`.

    Pieces of a replica's share flow through its stages. A stage accumulates its gradients, then sums them over the
    ranks that hold the same stage in the other replicas. The loss is divided once, by the count of the global batch, so
    gradients are *summed*. `inside` sets which ranks are neighbors (on one node, if they fit): the "stages" of a
    replica, or the "replicas" of a stage.

    With `shards`, each replica is `shards` pipelines, on replicas x shards x stages ranks, and each pipeline reads
    different sequences. The ranks that hold the same stage of a replica divide its optimizer state by rows (`zero.py`):
    weights and gradients are whole while the pipeline runs, so micro-batches need no extra messages.
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
        self.mesh_in_words = mesh_in_words(replicas, shards, len(self.stage.ranks))
        self.replica_group = self.mesh.get_group("replica")
        self.sum_over_replicas = GradientSum(parts, self.replica_group)
        if self.row_shards:
            self.sum_over_replicas.start_sum = self.row_shards.reduce
            self.share_number += self.row_shards.place
            self.model_group = group_of_each_replica(self.mesh)

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
                    works = [dist.all_reduce(g, group=self.replica_group, async_op=True) for g in gradients]
                    for work in works:
                        if work is not None:
                            work.wait()

    def shards(self) -> dict[str, Shard]:
        """Return this rank's shard of each of its stage's parameters: the whole parameter, or this rank's rows."""
        if self.row_shards is None:
            return super().shards()
        if self.row_shards.is_whole:
            self.row_shards.cut()  # it is still whole after a forward pass without a backward pass
        return {name: self.row_shards.shard_of(weight) for name, weight in self.model.named_parameters()}


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
        self.group = group
        self.start_sum: Callable[[Tensor], Any] = lambda weight: dist.all_reduce(
            weight.grad, group=self.group, async_op=True
        )
        self.becomes_final: int | None = None
        for number, weights in enumerate(self.parts):
            for weight in weights:
                weight.register_post_accumulate_grad_hook(lambda weight, part=number: self._note(weight, part))

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

    def _note(self, parameter: Tensor, part: int) -> None:
        if part == self.becomes_final:
            self.ready.add(parameter)
            self._send()

    def _send(self) -> None:
        while len(self.sending) < len(self.parameters) and self.parameters[len(self.sending)] in self.ready:
            self.sending.append(self.start_sum(self.parameters[len(self.sending)]))
