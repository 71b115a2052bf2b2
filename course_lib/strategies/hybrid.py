"""Hybrid parallelism: replicas of a pipeline. A replica gets a share of the batch, a stage a part of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from course_lib.data import Batch
from course_lib.lstm.model import Loss, SequenceModel
from course_lib.machine import device
from course_lib.strategies.base import MakeOptimizer, StatesByMicroBatch, sum_over_ranks
from course_lib.strategies.execution import Execution
from course_lib.strategies.pipeline import Pipeline
from course_lib.trace import span


class Hybrid(Pipeline):
    """`replicas` pipelines side by side, on replicas x stages ranks; the other options are those of `Pipeline`.

    Pieces of a replica's share flow through its stages. A stage accumulates its gradients, then sums them over the
    ranks that hold the same stage in the other replicas. The loss is divided once, by the count of the global batch, so
    gradients are *summed*. `inside` says which ranks are neighbors, and so in one node if they fit: the "stages" of a
    replica, or the "replicas" of a stage.
    """

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        replicas: int,
        inside: str = "stages",
        **options: Any,
    ) -> None:
        self.mesh = mesh_of(replicas, inside=inside)
        self.replicas, self.replica = replicas, self.mesh.get_local_rank("replica")
        super().__init__(model, optimizer, loss, **options)
        parts = [virtual.part for virtual in self.stage.virtual]
        for part in parts:
            part.one_call = None if self.replicas == 1 else False  # as in DDP: layer by layer, to send gradients early
        self.replica_group = self.mesh.get_group("replica")
        self.sum_over_replicas = GradientSum(parts, self.replica_group)
        self.shares, self.share_number = self.replicas, self.replica

    def group_of_stages(self) -> dist.ProcessGroup:
        """Return the ranks of this replica."""
        return self.mesh.get_group("stage")

    def share(self, batch: Batch) -> Batch:
        """Return the replica's sequences, which are the same for all of its stages."""
        return batch.shard(self.replica, self.replicas)

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        count = sum_over_ranks(batch.mask.sum(), self.replica_group)
        schedule, routes = self.schedules.of(batch, self.stage.index)
        started = self.sum_over_replicas.start
        self.execution = Execution(self.stage, schedule, batch, self.divisor(count), self.states, started, routes)
        self.sum_over_replicas.begin(list(self.execution.last_actions))
        total = self.execution.run()
        return sum_over_ranks(total), count, self.execution.states  # only the model's last parts add to the total

    def reduce_gradients(self) -> None:
        """Send the gradients that the last backward pass has not sent yet, and wait for the sums."""
        with span("communication"):
            self.sum_over_replicas.finish()


def mesh_of(replicas: int, column: str = "stage", inside: str = "") -> DeviceMesh:
    """Return a mesh of all ranks: a row per replica, a column per stage or per shard.

    Ranks are numbered along the rows, or with `inside="replicas"` down the columns, so that replicas are neighbors.
    """
    ranks = dist.get_world_size()
    if replicas < 1 or ranks % replicas:
        fitting = [number for number in range(1, ranks + 1) if ranks % number == 0]
        raise ValueError(
            f"replicas={replicas} on {ranks} ranks: replicas x {column}s = ranks, so choose one of {fitting}"
        )
    if inside not in ("", f"{column}s", "replicas"):
        raise ValueError(f"inside={inside!r}: choose {column}s or replicas")
    shape = {"replica": replicas, column: ranks // replicas}
    names = (column, "replica") if inside == "replicas" else ("replica", column)
    return init_device_mesh(device().type, tuple(shape[name] for name in names), mesh_dim_names=names)


class GradientSum:
    """Sums the gradients of a stage's parameters over a group, *during* the last backward passes of its parts.

    A gradient is sent once it is final, the last layer's first, and in the same order on every rank: ranks match
    collectives by their order alone.
    """

    def __init__(self, parts: Sequence[nn.Module], group: dist.ProcessGroup) -> None:
        self.group = group
        backwards = [list(reversed(list(part.parameters()))) for part in parts]
        self.parts = [[weight for weight in weights if weight.requires_grad] for weights in backwards]
        self.parameters: list[Tensor] = []  # in the order in which their gradients are sent
        self.ready: set[Tensor] = set()
        self.sending: list[Any] = []  # of dist.Work
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
        """Send the remaining gradients, and return once everything has been summed."""
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
            gradient = self.parameters[len(self.sending)].grad
            self.sending.append(dist.all_reduce(gradient, group=self.group, async_op=True))
