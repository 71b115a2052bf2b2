"""Model parallelism: every rank has some of the blocks; activations pass from rank to rank, and gradients back."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import edges
from course_lib.data import Batch
from course_lib.loss import Loss
from course_lib.machine import device
from course_lib.model import SequenceModel, States, detached
from course_lib.placement import Placement, check_placement, equal_count
from course_lib.strategies.strategy import (
    MakeOptimizer,
    NamedTensors,
    agree_on_weights,
    clip_gradients,
    gathered,
    gradients_of,
    state_of,
)
from course_lib.trace import span


@dataclass(frozen=True)
class Leg:
    """Consecutive blocks on one rank: the activations come in, pass through, and go on to the next leg's rank."""

    rank: int
    places: tuple[int, ...]
    width: int  # of what comes out


@dataclass
class Passed:
    """What a leg's forward pass leaves for its backward pass: the graph between these two."""

    inputs: Tensor
    outputs: Tensor


class ModelParallel:
    """One rank per stage of the placement, one rank at work at a time.

    An activation that comes from another rank is a leaf of this rank's graph. The backward pass ends at it, and what
    is then in its `.grad` goes back to where the activation came from: that is where the backward pass goes on.
    """

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        placement: Placement | None = None,
        carry_state: bool = False,
        clip: float | None = None,
    ) -> None:
        self.device = device()
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        placement = placement or equal_count(len(model), self.ranks)
        check_placement(placement, model, self.ranks)
        agree_on_weights(model)
        self.legs = legs_of(model, placement)
        self.dtype = next(model.parameters()).dtype
        own = [block for block, owner in zip(model.numbered(), placement.stage_of, strict=True) if owner == self.rank]
        self.model = SequenceModel(dict(own)).to(self.device)
        self.optimizer = optimizer(self.model.parameters())
        self.loss, self.carry_state, self.clip = loss, carry_state, clip
        self.states: States = {}

    def share(self, batch: Batch) -> Batch:
        """The whole batch: the first stage reads its inputs, the last its targets, and all of them its count."""
        return batch

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One update for the batch. Returns the same on all ranks."""
        batch = batch.to(self.device, non_blocking=True)
        count = batch.mask.sum()
        self.optimizer.zero_grad()
        own = [number for number, leg in enumerate(self.legs) if leg.rank == self.rank]
        states: States = {}
        passed = {number: self._forward(number, batch, states) for number in own}
        for number in reversed(own):
            self._backward(number, passed[number])
        with span("update"):
            if self.clip is not None:
                clip_gradients(self.model, self.clip)
            self.optimizer.step()
        self.states = detached(states) if self.carry_state else {}
        return self._loss_for_all(passed), count

    def full_state(self) -> NamedTensors:
        return gathered(state_of(self.model))

    def full_gradients(self) -> NamedTensors:
        return gathered(gradients_of(self.model))

    def computing(self, name: str, leg: Leg) -> AbstractContextManager:
        """The span in which a leg computes its `forward` or `backward` pass. Override it to pace the computation."""
        return span(name)

    def send(self, tensor: Tensor, to: int) -> None:
        """Send, and wait until the message has left."""
        with span("send", peer=to):
            edges.send(tensor, to).wait()

    def receive(self, shape: tuple[int, ...], source: int) -> Tensor:
        """Wait for a message of that shape."""
        with span("receive", peer=source):
            return edges.receive(shape, self.dtype, self.device, source).wait()

    def _forward(self, number: int, batch: Batch, states: States) -> Passed:
        """Run the leg when its inputs are there, and send its outputs on. The last leg's output is the loss."""
        leg, inputs = self.legs[number], batch.inputs
        if number > 0:
            before = self.legs[number - 1]
            inputs = self.receive((batch.steps, batch.sequences, before.width), before.rank).requires_grad_()
        with self.computing("forward", leg):
            outputs, new_states = self.model.part(leg.places[0], leg.places[-1] + 1)(inputs, self.states)
            states.update(new_states)
            if number == len(self.legs) - 1:
                total, count = self.loss(outputs, batch)
                return Passed(inputs, total / count.clamp(min=1))
        self.send(outputs, self.legs[number + 1].rank)
        return Passed(inputs, outputs)

    def _backward(self, number: int, passed: Passed) -> None:
        """Run the leg backward when the gradient of its outputs is there, and send that of its inputs back."""
        is_last = number == len(self.legs) - 1
        gradient = None if is_last else self.receive(tuple(passed.outputs.shape), self.legs[number + 1].rank)
        with self.computing("backward", self.legs[number]):
            if passed.outputs.requires_grad:  # not so if all blocks up to here are frozen
                passed.outputs.backward(gradient)
        if number > 0:
            self.send(passed.inputs.grad, self.legs[number - 1].rank)

    def _loss_for_all(self, passed: dict[int, Passed]) -> Tensor:
        """The loss, which only the last leg's rank knows, on every rank."""
        loss = torch.zeros((), dtype=self.dtype, device=self.device)
        last = len(self.legs) - 1
        if last in passed:
            loss.copy_(passed[last].outputs.detach())
        with span("communication"):
            dist.broadcast(loss, self.legs[last].rank)
        return loss


def legs_of(model: SequenceModel, placement: Placement) -> list[Leg]:
    """The way of the activations through the ranks: one leg more than the placement has hops."""
    owned = zip(placement.stage_of, model.numbered(), strict=True)
    groups = [(rank, [block for _, block in group]) for rank, group in groupby(owned, key=lambda pair: pair[0])]
    return [Leg(rank, tuple(place for place, _ in blocks), blocks[-1][1].width) for rank, blocks in groups]
