"""The executor: runs one stage's actions on one batch, in the order of the schedule.

It works for any schedule. An action's inputs come from another part of the model, on this rank or in a message, or from
an earlier action of the same stage.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.data import Batch
from course_lib.lstm.model import State, States, untouched
from course_lib.planning.actions import Action, Held
from course_lib.planning.schedule import Schedule
from course_lib.planning.simulation import NAMES
from course_lib.strategies.mail import Mail, Routes
from course_lib.strategies.point_to_point import gradient_of
from course_lib.strategies.split_backward import SecondPart, SplitPass, WholePass
from course_lib.strategies.stage import Stage, VirtualStage
from course_lib.trace import span

Piece = tuple[int, int, int]  # micro-batch, chunk and virtual stage
Part = tuple[int, int]  # micro-batch and virtual stage: the key of a carried state


@dataclass
class Beginning:
    """What it takes to recompute a forward pass: its inputs, its states, and the random number generators' state."""

    inputs: Tensor
    states: States
    random_numbers: list[Tensor]


class Execution:
    """One stage's work on one batch: its actions, in the order of the schedule. Gradients accumulate.

    `before_action`, if given, is called before each action. Its argument is the virtual stage whose gradients are final
    after the action, or None.
    """

    def __init__(
        self,
        stage: Stage,
        schedule: Schedule,
        batch: Batch,
        count: Tensor,
        states: dict[int, States],
        before_action: Callable[[int | None], None] | None = None,
        routes: Routes | None = None,
    ) -> None:
        self.stage, self.schedule, self.before_action = stage, schedule, before_action
        self.actions = schedule.stages[stage.index]
        self.pieces = [piece.chunks(schedule.chunks) for piece in batch.micro_batches(schedule.micro_batches)]
        self.count, self.total = count.to(stage.dtype), torch.zeros((), dtype=stage.dtype, device=count.device)
        self.mail = Mail(stage, routes or Routes(schedule, stage.index), self.pieces)
        self.part_states = {
            (m, v): _states_of(virtual, states.get(m, {}))
            for m in range(schedule.micro_batches)
            for v, virtual in enumerate(stage.virtual)
        }
        self.state_gradients: dict[Part, dict[int, State]] = {}
        self.beginnings: dict[Piece, Beginning] = {}
        self.saved: dict[Piece, WholePass | SplitPass] = {}  # forward pass done, backward pass pending
        self.for_weights: dict[Piece, SecondPart] = {}  # backward pass done, weight gradients pending
        self.held: list[Held] = []  # how many pieces are held after each action

    @property
    def states(self) -> dict[int, States]:
        """The final states of the sequences, by micro-batch."""
        merged: dict[int, States] = {m: {} for m in range(self.schedule.micro_batches)}
        for (m, _), states in self.part_states.items():
            merged[m] |= states
        return merged

    @property
    def peak(self) -> int:
        """The largest number of pieces whose activations were held at once."""
        return max(int(held.activations) for held in self.held)

    @property
    def peak_for_weights(self) -> int:
        """The largest number of pieces that waited for their weight gradients at once."""
        return max(int(held.for_weights) for held in self.held)

    @property
    def last_actions(self) -> dict[int, int]:
        """For each virtual stage, the index of the action after which its gradients are final, lowest index first."""
        last_action = {
            action.virtual: number
            for number, action in enumerate(self.actions)
            if action.kind == "W" or (action.kind == "B" and not self._is_split(action))
        }
        return dict(sorted(last_action.items(), key=lambda item: item[1]))

    def run(self) -> Tensor:
        """Run all actions. Returns the summed loss on the stage with the model's last part, and 0 on the others."""
        do = {"F": self.forward, "B": self.backward, "W": self.weight_gradients, "R": self.recompute}
        final = {number: virtual for virtual, number in self.last_actions.items()}
        self.mail.post(0)
        for number, action in enumerate(self.actions):
            if self.before_action is not None:
                self.before_action(final.get(number))
            do[action.kind](action)
            self.mail.post(number + 1)
            self.held.append(Held(len(self.saved), len(self.for_weights)))
        self.mail.finish()
        return self.total

    def forward(self, action: Action) -> None:
        """Run one piece forward, and save its graph unless the piece will be recomputed."""
        key, virtual = (action.micro_batch, action.virtual), self.stage.virtual[action.virtual]
        inputs = self._piece(action).inputs if virtual.is_first else self.mail.receive(action).requires_grad_()
        recomputed_later = (self.stage.index, action.piece) in self.schedule.recomputed
        with self._working(action):
            states = _leaves(self.part_states[key]) if action.chunk else self.part_states[key]
            if recomputed_later:
                self.beginnings[action.piece] = Beginning(inputs, states, _random_numbers(inputs))
            with torch.set_grad_enabled(not recomputed_later):
                forward_pass = self._run(action, inputs, states)
            if virtual.is_last:
                self.total += forward_pass.outputs.detach()
        self.mail.deliver(action, forward_pass.outputs)
        self.part_states[key] = forward_pass.new_states
        if not recomputed_later:
            self.saved[action.piece] = forward_pass

    def recompute(self, action: Action) -> None:
        """Run one piece forward again, from its saved beginning."""
        beginning, virtual = self.beginnings.pop(action.piece), self.stage.virtual[action.virtual]
        with self._working(action), untouched(virtual.part):  # BatchNorm must not count this call twice
            _set_random_numbers(beginning.random_numbers, beginning.inputs)
            self.saved[action.piece] = self._run(action, beginning.inputs, beginning.states)

    def backward(self, action: Action) -> None:
        """Run one piece backward, and send the gradient of its inputs to the previous stage."""
        key, virtual = (action.micro_batch, action.virtual), self.stage.virtual[action.virtual]
        gradient = None if virtual.is_last else self.mail.receive(action)
        saved = self.saved.pop(action.piece)
        with self._working(action):
            saved.backward(1 / self.count if gradient is None else gradient, self.state_gradients.pop(key, {}))
            if action.chunk:
                states = saved.states.items()
                self.state_gradients[key] = {index: (gradient_of(h), gradient_of(c)) for index, (h, c) in states}
        if not virtual.is_first:
            self.mail.deliver(action, gradient_of(saved.inputs))
        if isinstance(saved, SplitPass):
            self.for_weights[action.piece] = saved.second_part()

    def weight_gradients(self, action: Action) -> None:
        """Compute the weight gradients that a split backward pass left for later."""
        with self._working(action):
            self.for_weights.pop(action.piece).backward()

    def _run(self, action: Action, inputs: Tensor, states: States) -> WholePass | SplitPass:
        virtual = self.stage.virtual[action.virtual]
        finish = self.stage.finish(virtual, self._piece(action))
        with self.stage.precision():
            if self._is_split(action):
                return SplitPass.run(virtual.blocks, inputs, states, finish)
            return WholePass.run(virtual.part, inputs, states, finish)

    def _is_split(self, action: Action) -> bool:
        return (self.stage.index, action.piece) in self.schedule.split

    def _piece(self, action: Action) -> Batch:
        return self.pieces[action.micro_batch][action.chunk]

    def _working(self, action: Action) -> AbstractContextManager[None]:
        """Return the span in which an action runs."""
        return span(NAMES[action.kind], at_least=self.stage.seconds_for(action, self.schedule))


def _states_of(virtual: VirtualStage, states: States) -> States:
    """Return the states that belong to this part's blocks."""
    return {index: states[index] for index, _ in virtual.part.numbered() if index in states}


def _leaves(states: States) -> States:
    """Return the same states as leaves of a new graph, so that gradients arrive in their `.grad`."""
    return {index: (h.detach().requires_grad_(), c.detach().requires_grad_()) for index, (h, c) in states.items()}


def _random_numbers(inputs: Tensor) -> list[Tensor]:
    """Return the state of the random number generators, so that dropout is the same when this is recomputed."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(inputs.device)] if inputs.is_cuda else [])]


def _set_random_numbers(states: list[Tensor], inputs: Tensor) -> None:
    torch.set_rng_state(states[0])
    if inputs.is_cuda:
        torch.cuda.set_rng_state(states[1], inputs.device)
