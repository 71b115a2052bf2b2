"""A parameter server: rank 0 stores the weights; the other ranks fetch them, compute gradients and send them back.

In synchronous mode, the server waits for every worker's gradient and makes one update from all of them. In asynchronous
mode, it makes an update from each gradient as it arrives: workers don't wait for each other, but a gradient may have
been computed with outdated weights.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import parameters_to_vector

from course_lib.data import Batch
from course_lib.lstm.model import Loss, SequenceModel
from course_lib.strategies.base import MakeOptimizer, Strategy, broadcast_weights, nonzero
from course_lib.strategies.shards import NamedTensors, Shard
from course_lib.trace import span

SERVER = 0
FORWARD_SHARE = 1 / 3  # the forward pass's share of a paced computation
NOTES = 3  # extra numbers after the gradient, or the weights, in a message


@dataclass(frozen=True)
class Update:
    """One update by the server: which workers' gradients it used, and how many updates old their weights were."""

    workers: tuple[int, ...]
    staleness: int
    loss: float
    seconds: float  # since the server was created


class ParameterServer(Strategy):
    """Rank 0 is the server; the other ranks are workers.

    A message to the server holds the gradient of the *summed* loss, the sum itself, its count, and the version of the
    weights. The answer holds the weights, the loss and the count of the update, and the new version. With `pace`, a
    worker computes for at least `pace` seconds per sequence. Messages are in host memory, because only gloo can receive
    from any rank.
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
        self.history: list[Update] = []
        self.began = time.monotonic()

    def share(self, batch: Batch) -> Batch:
        """Return a worker's sequences; the server has none."""
        if self.is_server:
            return batch.rows([])
        return batch.shard(self.rank - 1, len(self.workers))

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Use one gradient from every worker: all in one update or, in asynchronous mode, each in a separate one."""
        if not self.is_server:
            self._work(batch)
        else:
            for _ in range(1 if self.synchronous else len(self.workers)):
                self.serve()
        return self.last[0], self.last[1]

    def train(self, batches: Iterable[Batch], updates: int) -> list[Update]:
        """Let every worker go through its `batches` as fast as it can, until the server has made `updates` updates.

        The server returns the updates. Gradients that arrive after the last one are not used.
        """
        if self.is_server:
            while self.updates < updates:
                self.serve()
            waiting = 0 if self.synchronous else len(self.workers) - 1  # the worker served last already has its answer
            for _ in range(waiting):
                self._answer(self._receive(None)[0])
        else:
            for batch in itertools.takewhile(lambda _: self.updates < updates, batches):
                self._work(batch)
        return self.history

    def shards(self) -> dict[str, Shard]:
        """Return this rank's weights. The server's are the model; each worker has a copy, which may be older."""
        return {name: replace(shard, copy=self.rank) for name, shard in super().shards().items()}

    def full_state(self) -> NamedTensors:
        """Return the server's weights."""
        return self._from_server(super().full_state())

    def full_gradients(self) -> NamedTensors:
        return self._from_server(super().full_gradients())

    def _work(self, batch: Batch) -> None:
        """Compute a gradient, send it to the server, and load the weights from the answer."""
        batch, seconds = batch.to(self.device), self.pace * batch.sequences
        with span("forward", at_least=FORWARD_SHARE * seconds):
            total, count = self.loss(self.model(batch.inputs)[0], batch)
        with span("backward", at_least=(1 - FORWARD_SHARE) * seconds):
            gradients = torch.autograd.grad(total, self.parameters)
        with span("communication", peer=SERVER):
            notes = torch.stack([total.detach(), count.to(total), torch.full_like(total, self.updates)])
            message = torch.cat([*(gradient.flatten() for gradient in gradients), notes]).cpu()
            dist.send(message, SERVER)
            dist.recv(message, SERVER)
        with torch.no_grad():  # copy in place: cuDNN needs an LSTM's weights contiguous
            for parameter, piece in self._pieces(message[:-NOTES].to(self.device)):
                parameter.copy_(piece)
        self.last, self.updates = message[-NOTES:-1], int(message[-1])

    def serve(self) -> None:
        """Make one update, from all workers' gradients or from the one that arrives first."""
        brought = dict(self._receive(worker) for worker in (self.workers if self.synchronous else [None]))
        oldest = min(int(message[-1]) for message in brought.values())
        with span("update"):
            message = torch.stack(list(brought.values())).sum(dim=0)
            total, count = message[-NOTES], nonzero(message[-NOTES + 1])
            for parameter, piece in self._pieces(message[:-NOTES] / count):
                parameter.grad = piece
            self.optimizer.step()
        self.last = torch.stack([total / count, count])
        seconds = time.monotonic() - self.began
        self.history.append(Update(tuple(brought), self.updates - oldest, self.last[0].item(), seconds))
        self.updates += 1
        for worker in brought:
            self._answer(worker)

    def _receive(self, worker: int | None) -> tuple[int, Tensor]:
        """Return (worker, message), from this worker, or from the first worker that sends one."""
        message = self._message()
        return dist.recv(message, worker), message

    def _answer(self, worker: int) -> None:
        dist.send(self._message(), worker)

    def _message(self) -> Tensor:
        """Return the weights, the loss and the count of the last update, and the version, as one vector."""
        weights = parameters_to_vector(self.parameters).detach()
        return torch.cat([weights, self.last.to(weights), torch.tensor([self.updates]).to(weights)])

    def _pieces(self, vector: Tensor) -> Iterator[tuple[Parameter, Tensor]]:
        """Yield each parameter with its piece of the vector, in the parameter's shape."""
        pieces = vector.split([parameter.numel() for parameter in self.parameters])
        return ((parameter, piece.view_as(parameter)) for parameter, piece in zip(self.parameters, pieces, strict=True))

    def _from_server(self, named: NamedTensors) -> NamedTensors:
        objects = [named]
        dist.broadcast_object_list(objects, SERVER)
        return objects[0]
