"""A parameter server: rank 0 stores the weights; the other ranks fetch them, compute gradients and send them back.

In synchronous mode, the server waits for every worker's gradient and makes one update from all of them. In asynchronous
mode, it makes an update from each gradient as it arrives: workers don't wait for each other, but a gradient may have
been computed with outdated weights.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from course_lib.core.batch import Batch
from course_lib.core.model import Loss, SequenceModel
from course_lib.core.shards import NamedTensors
from course_lib.core.strategy import MakeOptimizer, Strategy, broadcast_weights, nonzero
from course_lib.runtime.trace import span

SERVER = 0
NOTES = 3  # numbers after the weights or the gradient in a message: a loss, its count, the version of the weights


@dataclass(frozen=True)
class ServerUpdate:
    """One update by the server: which workers' gradients it used, and how many updates old their weights were."""

    workers: tuple[int, ...]
    staleness: int
    loss: float
    seconds: float  # since the server was created


class ParameterServer(Strategy):
    """Rank 0 is the server; the other ranks are workers, each with a copy of the model that may be outdated.

    With `pace`, a worker computes for at least `pace` seconds per sequence. Messages are in host memory, because only
    gloo can receive from any rank.
    """

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        synchronous: bool = False,
        pace: float = 0.0,
    ) -> None:
        self.workers = range(1, dist.get_world_size())
        if not self.workers:
            raise ValueError("a parameter server on 1 rank has no workers: give at least 2 ranks")
        broadcast_weights(model)
        super().__init__(model, optimizer, loss)
        self.is_server = self.rank == SERVER
        if self.is_server:
            self.device, self.model = torch.device("cpu"), self.model.cpu()
            self.optimizer = optimizer(self.model.parameters())
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.synchronous, self.pace = synchronous, pace
        self.last = torch.zeros(2)  # the loss and the count of the last update
        self.history: list[ServerUpdate] = []
        self.began = time.monotonic()

    def share(self, batch: Batch) -> Batch:
        """Return a worker's sequences; the server has none."""
        return batch.rows([]) if self.is_server else batch.shard(self.rank - 1, len(self.workers))

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Use one gradient from every worker: all in one update or, in asynchronous mode, each in a separate one."""
        if not self.is_server:
            self.work(batch)
        else:
            for _ in range(1 if self.synchronous else len(self.workers)):
                self.serve()
        return self.last[0], self.last[1]

    def train(self, batches: Iterable[Batch], updates: int) -> list[ServerUpdate]:
        """Let every worker go through its `batches` as fast as it can, until the server has made `updates` updates.

        The server returns the updates. Gradients that arrive after the last one are not used.
        """
        if not self.is_server:
            for batch in itertools.takewhile(lambda _: self.updates < updates, batches):
                self.work(batch)
            return self.history
        while self.updates < updates:
            self.serve()
        for _ in range(0 if self.synchronous else len(self.workers) - 1):  # the worker served last has its answer
            message = self._weights()
            dist.send(self._weights(), dist.recv(message))
        return self.history

    def work(self, batch: Batch) -> None:
        """Send the gradient of the *summed* loss to the server, and load the weights that it answers with."""
        batch, seconds = batch.to(self.device), self.pace * batch.sequences
        with span("forward", at_least=seconds / 3):
            total, count = self.loss(self.model(batch.inputs)[0], batch)
        with span("backward", at_least=2 * seconds / 3):
            gradients = torch.autograd.grad(total, self.parameters)
        with span("communication", peer=SERVER):
            notes = torch.stack([total.detach(), count.to(total), torch.full_like(total, self.updates)])
            message = torch.cat([*(gradient.flatten() for gradient in gradients), notes]).cpu()
            dist.send(message, SERVER)
            dist.recv(message, SERVER)
        with torch.no_grad():  # copy in place: cuDNN needs an LSTM's weights contiguous
            for parameter, piece in zip(self.parameters, self._pieces(message), strict=True):
                parameter.copy_(piece)
        self.last, self.updates = message[-NOTES:-1], int(message[-1])

    def serve(self) -> None:
        """Make one update, from all workers' gradients or from the one that arrives first, and answer with it."""
        received: dict[int, Tensor] = {}
        for worker in self.workers if self.synchronous else [None]:  # None: whoever sends first
            message = self._weights()
            received[dist.recv(message, worker)] = message
        oldest = min(int(message[-1]) for message in received.values())
        with span("update"):
            message = torch.stack(list(received.values())).sum(dim=0)
            total, count = message[-NOTES], nonzero(message[-NOTES + 1])
            for parameter, piece in zip(self.parameters, self._pieces(message), strict=True):
                parameter.grad = piece / count
            self.optimizer.step()
        self.last = torch.stack([total / count, count])
        seconds = time.monotonic() - self.began
        self.history.append(ServerUpdate(tuple(received), self.updates - oldest, self.last[0].item(), seconds))
        self.updates += 1
        for worker in received:
            dist.send(self._weights(), worker)

    def full_state(self) -> NamedTensors:
        """Return the server's weights."""
        return self._from_server(super().full_state())

    def full_gradients(self) -> NamedTensors:
        """Return the gradients of the server's last update."""
        return self._from_server(super().full_gradients())

    def _from_server(self, named: NamedTensors) -> NamedTensors:
        objects = [named]
        dist.broadcast_object_list(objects, SERVER)
        return objects[0]

    def _weights(self) -> Tensor:
        """Return the message that answers a worker. A gradient's message has the same size."""
        weights = parameters_to_vector(self.parameters).detach()
        return torch.cat([weights, self.last.to(weights), torch.tensor([self.updates]).to(weights)])

    def _pieces(self, message: Tensor) -> list[Tensor]:
        """Return the message's part for each parameter, in the parameter's shape."""
        pieces = message[:-NOTES].to(self.device).split([parameter.numel() for parameter in self.parameters])
        return [piece.view_as(parameter) for parameter, piece in zip(self.parameters, pieces, strict=True)]
