"""Model parallelism: every rank has some of the blocks; activations go from rank to rank, and gradients come back."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.core.batch import Batch
from course_lib.core.model import Loss, SequenceModel, States
from course_lib.core.strategy import MakeOptimizer, StatesByMicroBatch, Strategy, broadcast_weights, rank_and_ranks
from course_lib.model_parallel import point_to_point
from course_lib.model_parallel.placement import Placement, check_placement, equal_count
from course_lib.runtime.trace import span


@dataclass(frozen=True)
class Segment:
    """Consecutive blocks on one rank: it receives activations, runs them, and sends the outputs to the next segment."""

    rank: int
    places: tuple[int, ...]
    width: int  # of its outputs


class SavedForward(NamedTuple):
    """The two ends of the graph that a segment's forward pass saves for its backward pass."""

    inputs: Tensor
    outputs: Tensor


class ModelParallel(Strategy):
    """One rank per stage of the placement; one rank works at a time.

    An activation received from a different rank is a leaf of this rank's graph. The backward pass ends there, and the
    leaf's `.grad` goes back to the rank that sent the activation, where the backward pass continues. Every rank reads
    the whole batch: the first stage needs its inputs, the last its targets, and all of them its count.
    """

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        placement: Placement | None = None,
        **options: Any,
    ) -> None:
        rank, ranks = rank_and_ranks()
        placement = placement or equal_count(len(model), ranks)
        check_placement(placement, model, ranks)
        broadcast_weights(model)
        blocks = dict(block for block, owner in zip(model.numbered(), placement.stage_of, strict=True) if owner == rank)
        super().__init__(SequenceModel(blocks), optimizer, loss, **options)
        self.model_group = dist.group.WORLD
        owned = zip(placement.stage_of, model.numbered(), strict=True)
        groups = [(owner, [block for _, block in group]) for owner, group in groupby(owned, key=lambda pair: pair[0])]
        # The activations' path through the ranks: one more segment than the placement has hops.
        self.segments = [Segment(owner, tuple(at for at, _ in part), part[-1][1].width) for owner, part in groups]
        hops = [(before.rank, after.rank) for before, after in pairwise(self.segments)]
        point_to_point.connect([*hops, *((to, source) for source, to in reversed(hops))])
        self.parts = {  # made once, because layers that run in one call remember their weights' memory layout
            number: self.model.part(segment.places[0], segment.places[-1] + 1)
            for number, segment in enumerate(self.segments)
            if segment.rank == rank
        }
        self.dtype = next(model.parameters()).dtype
        self.message_dtype = self.autocast or self.dtype

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        """Run this rank's segments forward, each when its inputs arrive, and then backward in reverse order."""
        count, states = batch.mask.sum(), {}
        saved = {number: self.forward_segment(number, batch, states) for number in self.parts}
        for number in reversed(self.parts):
            self.backward_segment(number, saved[number], self.divisor(count))
        last_forward = saved.get(len(self.segments) - 1)
        total = last_forward.outputs.detach() if last_forward else torch.zeros((), dtype=self.dtype, device=self.device)
        with span("communication"):
            dist.broadcast(total, self.segments[-1].rank)
        return total, count, {0: states}

    def computing(self, name: str, segment: Segment) -> AbstractContextManager:
        """Return the span in which a segment computes its `forward` or `backward` pass. Override this to pace it."""
        return span(name)

    def send(self, tensor: Tensor, to: int) -> None:
        """Send a tensor, and wait until it has been sent."""
        with span("send", peer=to):
            point_to_point.send(tensor, to).wait()

    def receive(self, shape: tuple[int, ...], source: int) -> Tensor:
        """Wait for a tensor of this shape, and return it."""
        with span("receive", peer=source):
            return point_to_point.receive(shape, self.message_dtype, self.device, source).wait()

    def forward_segment(self, number: int, batch: Batch, states: States) -> SavedForward:
        """Run the segment when its inputs arrive, and send its outputs on. The last segment's output is the loss."""
        segment, inputs = self.segments[number], batch.inputs
        if number > 0:
            before = self.segments[number - 1]
            inputs = self.receive((batch.steps, batch.sequences, before.width), before.rank).requires_grad_()
        with self.computing("forward", segment), self.precision():
            outputs, new_states = self.parts[number](inputs, self.states.get(0))
            states.update(new_states)
            if number == len(self.segments) - 1:
                return SavedForward(inputs, self.checked_loss(outputs, batch)[0])
            outputs = outputs.to(self.message_dtype)
        self.send(outputs, self.segments[number + 1].rank)
        return SavedForward(inputs, outputs)

    def backward_segment(self, number: int, saved: SavedForward, count: Tensor) -> None:
        """Run the segment backward once the gradient of its outputs arrives, and send back that of its inputs."""
        is_last = number == len(self.segments) - 1
        outputs = saved.outputs / count if is_last else saved.outputs
        gradient = None if is_last else self.receive(tuple(outputs.shape), self.segments[number + 1].rank)
        with self.computing("backward", self.segments[number]):
            if outputs.requires_grad:  # false if all blocks up to here are frozen
                outputs.backward(gradient)
        if number > 0:
            self.send(point_to_point.gradient_of(saved.inputs), self.segments[number - 1].rank)
