"""Pipeline parallelism: each rank has some consecutive blocks, and pieces of the batch flow through them.

The executor does not know which schedule it runs. It does a stage's actions in their order; what an action needs comes
from a neighbour, in a message, or from an earlier action of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.data import Batch
from course_lib.lstm.loss import Loss
from course_lib.lstm.model import SequenceModel, State, States
from course_lib.machine import device
from course_lib.planning.placement import Placement, check_placement, equal_count
from course_lib.planning.schedules import SCHEDULES, Action, Schedule, check
from course_lib.planning.simulation import ActionCosts
from course_lib.strategies.base import (
    MakeOptimizer,
    StatesByMicroBatch,
    Strategy,
    broadcast_weights,
    rank_and_ranks,
)
from course_lib.strategies.point_to_point import PendingReceive, PendingSend, gradient_of, receive, send
from course_lib.trace import span

FORWARD, BACKWARD = 1, 2  # tags: activations and gradients between two ranks do not get mixed up


class Pipeline(Strategy):
    """One stage per rank. A batch is cut into `micro_batches` and each of them into `chunks` of time.

    `schedule` is a name (naive, gpipe, 1f1b, wavefront) or a `Schedule` of your own, which then says how many pieces
    there are. A batch with fewer steps than `chunks` is cut into as many as it has. With `pace`, an action takes at
    least as long as those costs say. Every rank reads the whole batch: the first stage its inputs, the last its
    targets, and all of them its shape.
    """

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        schedule: str | Schedule = "1f1b",
        micro_batches: int = 4,
        chunks: int = 1,
        placement: Placement | None = None,
        pace: ActionCosts | None = None,
        **options: Any,
    ) -> None:
        rank, stages = rank_and_ranks()
        self.schedules = Schedules(schedule, stages, micro_batches, chunks)
        broadcast_weights(model)
        placement = placement or equal_count(len(model), stages)
        self.stage = Stage.of(model, placement, rank, range(stages), self.checked_loss, pace)
        super().__init__(self.stage.part, optimizer, loss, **options)
        self.model_group = dist.group.WORLD
        self.micro_batches = self.schedules.micro_batches

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        """All pieces of the batch: until they are done, no weight changes."""
        count = batch.mask.sum()
        self.execution = Execution(self.stage, self.schedules.of(batch), batch, count.clamp(min=1), self.states)
        total = self.execution.run()
        with span("communication"):
            dist.broadcast(total, self.ranks - 1)  # only the last stage knows it
        return total, count, self.execution.states


class Schedules:
    """Which schedule a batch is run with: the same for all, but for batches that have fewer steps than chunks."""

    def __init__(self, schedule: str | Schedule, stages: int, micro_batches: int, chunks: int) -> None:
        if isinstance(schedule, Schedule):
            _check_stages(len(schedule.stages), stages)
            check(schedule)  # before a message is sent
            micro_batches, chunks = schedule.micro_batches, schedule.chunks
            self._make: Callable[[int], Schedule] = lambda chunks: schedule
        else:
            if schedule not in SCHEDULES:
                raise ValueError(f"schedule={schedule!r}: choose {', '.join(SCHEDULES)}, or give a Schedule")
            self._make = lru_cache(lambda chunks: SCHEDULES[schedule](stages, micro_batches, chunks))
        self.micro_batches, self.chunks = micro_batches, chunks
        self._make(chunks)  # a wrong number is refused here, and not in the first step

    def of(self, batch: Batch) -> Schedule:
        """The schedule for this batch."""
        return self._make(min(self.chunks, batch.steps))


@dataclass(frozen=True)
class Stage:
    """The blocks of one rank, and where they stand in the pipeline."""

    part: SequenceModel
    loss: Loss
    place: int
    ranks: tuple[int, ...]  # of all stages, in order
    width: int  # numbers per step and sequence in what it receives
    pace: ActionCosts | None
    groups: Mapping[int, Any]  # None, or a process group, for each direction: NCCL keeps only the order within a group

    @classmethod
    def of(
        cls,
        model: SequenceModel,
        placement: Placement,
        place: int,
        ranks: Iterable[int],
        loss: Loss,
        pace: ActionCosts | None = None,
    ) -> Stage:
        """The stage at `place` of the pipeline whose stages live on `ranks`. Only its blocks go to the device."""
        ranks = tuple(ranks)
        check_placement(placement, model, len(ranks))
        start, stop = placement.parts[place]
        width = dict(model.numbered())[start - 1].width if start else 0
        own_groups = "cuda:nccl" in dist.get_backend_config()
        groups = {direction: dist.new_group() if own_groups else None for direction in (FORWARD, BACKWARD)}
        return cls(model.part(start, stop).to(device()), loss, place, ranks, width, pace, groups)

    @property
    def is_first(self) -> bool:
        return self.place == 0

    @property
    def is_last(self) -> bool:
        return self.place == len(self.ranks) - 1

    @property
    def dtype(self) -> torch.dtype:
        return next(self.part.parameters()).dtype

    def seconds_for(self, action: Action) -> float:
        """How long an action takes at least."""
        return self.pace.of(action, self.place) if self.pace else 0.0

    def send(self, tensor: Tensor, direction: int) -> PendingSend:
        """Begin to send activations to the next stage, or gradients to the one before."""
        peer = self.ranks[self.place + (1 if direction == FORWARD else -1)]
        return send(tensor, peer, direction, self.groups[direction])

    def receive(self, piece: Batch, direction: int) -> PendingReceive:
        """Begin to receive the activations of this piece, or the gradient of what was sent for it."""
        width = self.width if direction == FORWARD else [block for _, block in self.part.numbered()][-1].width
        shape, peer = (
            (piece.steps, piece.sequences, width),
            self.ranks[self.place - (1 if direction == FORWARD else -1)],
        )
        return receive(shape, self.dtype, piece.mask.device, peer, direction, self.groups[direction])


@dataclass
class SavedForward:
    """What the forward pass of one action leaves for its backward pass."""

    inputs: Tensor
    states: States  # in which it began
    outputs: Tensor
    new_states: States  # in which it ended


class Execution:
    """One stage's work on one batch: its actions, in the order of the schedule. Gradients are added up.

    `before_action`, if given, is called before each action, and told whether it is the last one.
    """

    def __init__(
        self,
        stage: Stage,
        schedule: Schedule,
        batch: Batch,
        count: Tensor,
        states: dict[int, States],
        before_action: Callable[[bool], None] | None = None,
    ) -> None:
        self.stage, self.actions, self.before_action = stage, schedule.stages[stage.place], before_action
        self.pieces = [piece.chunks(schedule.chunks) for piece in batch.micro_batches(schedule.micro_batches)]
        self.count, self.total = count.to(stage.dtype), torch.zeros((), dtype=stage.dtype, device=count.device)
        self.states = {m: states.get(m, {}) for m in range(schedule.micro_batches)}
        self.state_gradients: dict[int, dict[int, State]] = {}
        self.saved: dict[tuple[int, int], SavedForward] = {}
        self.peak = 0  # the most actions whose activations were held at once
        self.sent: list[PendingSend] = []
        before = () if stage.is_first else schedule.stages[stage.place - 1]
        after = () if stage.is_last else schedule.stages[stage.place + 1]
        self.activations = Inbox([action for action in before if action.kind == "F"], self._post(FORWARD))
        self.gradients = Inbox([action for action in after if action.kind == "B"], self._post(BACKWARD))

    def run(self) -> Tensor:
        """Do all actions. Returns the sum of losses on the last stage, and 0 on the others."""
        do = {"F": self._forward, "B": self._backward}
        for number, action in enumerate(self.actions):
            if self.before_action is not None:
                self.before_action(number == len(self.actions) - 1)
            do[action.kind](action)
            self.peak = max(self.peak, len(self.saved))
        for sending in self.sent:
            sending.wait()
        return self.total

    def _forward(self, action: Action) -> None:
        m, stage = action.micro_batch, self.stage
        piece = self.pieces[m][action.chunk]
        inputs = piece.inputs if stage.is_first else self.activations.take(action).requires_grad_()
        states = _leaves(self.states[m]) if action.chunk else self.states[m]
        with span("forward", at_least=stage.seconds_for(action)):
            outputs, new_states = stage.part(inputs, states)
            if stage.is_last:
                outputs, _ = stage.loss(outputs, piece)
                self.total += outputs.detach()
        if not stage.is_last:
            self._send(outputs, FORWARD)
        self.states[m] = new_states
        self.saved[m, action.chunk] = SavedForward(inputs, states, outputs, new_states)

    def _backward(self, action: Action) -> None:
        m, stage = action.micro_batch, self.stage
        saved = self.saved.pop((m, action.chunk))
        ends = [(saved.outputs, 1 / self.count if stage.is_last else self.gradients.take(action))]
        for place, from_next_chunk in self.state_gradients.pop(m, {}).items():
            ends += zip(saved.new_states[place], from_next_chunk, strict=True)
        with span("backward", at_least=stage.seconds_for(action)):
            trained = [(end, gradient) for end, gradient in ends if end.requires_grad]
            if trained:  # a stage may have nothing to train
                torch.autograd.backward([end for end, _ in trained], [gradient for _, gradient in trained])
        if not stage.is_first:
            self._send(gradient_of(saved.inputs), BACKWARD)
        if action.chunk:
            states = saved.states.items()
            self.state_gradients[m] = {place: (gradient_of(h), gradient_of(c)) for place, (h, c) in states}

    def _send(self, tensor: Tensor, direction: int) -> None:
        self.sent = [sending for sending in self.sent if not sending.done]  # their buffers are free
        self.sent.append(self.stage.send(tensor, direction))

    def _post(self, direction: int) -> Callable[[Action], PendingReceive]:
        return lambda action: self.stage.receive(self.pieces[action.micro_batch][action.chunk], direction)


class Inbox:
    """Messages from a neighbour. They are received in the order in which they are sent, and taken in any order."""

    def __init__(self, order: Iterable[Action], post: Callable[[Action], PendingReceive]) -> None:
        self.order, self.post = iter(order), post
        self.posted: dict[Action, PendingReceive] = {}
        self._post_next()

    def take(self, action: Action) -> Tensor:
        """What the neighbour's `action` sent."""
        while action not in self.posted:
            self._post_next()
        with span("receive"):
            message = self.posted.pop(action).wait()
        self._post_next()  # the next one may come while this one is worked on
        return message

    def _post_next(self) -> None:
        for action in self.order:
            self.posted[action] = self.post(action)
            return


def _leaves(states: States) -> States:
    """The same states as the beginning of a new graph, in which a gradient arrives at them."""
    return {place: (h.detach().requires_grad_(), c.detach().requires_grad_()) for place, (h, c) in states.items()}


def _check_stages(given: int, ranks: int) -> None:
    if given != ranks:
        raise ValueError(f"{given} stages on {ranks} ranks: every stage needs a rank, and every rank a stage")
