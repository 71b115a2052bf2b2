"""Pipeline parallelism: each rank has one or more parts of consecutive blocks, and a batch flows through in pieces.

A `Schedule` sets which rank does what, and in which order. A `Stage` holds a rank's blocks, and an `Execution` runs any
schedule on them: an action's inputs come from another part of the model, on this rank or in a message, or from an
earlier action of the same stage.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.core.batch import Batch
from course_lib.core.model import Loss, SequenceModel, State, States, untouched
from course_lib.core.strategy import MakeOptimizer, StatesByMicroBatch, Strategy, broadcast_weights, check_limits
from course_lib.model_parallel.placement import Placement, equal_count
from course_lib.model_parallel.point_to_point import gradient_of
from course_lib.pipeline.actions import Action, Held
from course_lib.pipeline.message_order import Mail, Routes
from course_lib.pipeline.named_schedules import make_schedule, with_recomputation
from course_lib.pipeline.schedule import Schedule, check
from course_lib.pipeline.simulation import NAMES, ActionCosts
from course_lib.pipeline.stage import SplitPass, Stage, WholePass
from course_lib.runtime.trace import span

Piece = tuple[int, int, int]  # micro-batch, chunk and virtual stage
StateKey = tuple[int, int]  # micro-batch and virtual stage: each carries its state from chunk to chunk


class Pipeline(Strategy):
    """One stage per rank. A batch is cut into `micro_batches`, and each of them into `chunks` of time.

    `schedule` is a name (naive, gpipe, 1f1b, wavefront, interleaved, looped-bfs, zb-h1, zb-v) or your own `Schedule`,
    which then sets the number of pieces. With several `virtual` stages, a rank has several parts of the model, and a
    `placement` numbers all parts in the model's order. With `recompute`, activations are dropped and recomputed. A
    batch with fewer steps than `chunks` is cut into as many chunks as it has steps. With `pace`, an action takes at
    least the time that these costs set for it, and a message at least their link time. Every rank reads the whole
    batch: the first part needs its inputs, the last its targets, and all of them its shape.
    """

    applies_precision = True  # the stage applies it

    def __init__(
        self,
        model: SequenceModel,
        optimizer: MakeOptimizer,
        loss: Loss,
        *,
        schedule: str | Schedule = "1f1b",
        micro_batches: int = 4,
        chunks: int = 1,
        virtual: int | None = None,
        recompute: bool = False,
        placement: Placement | None = None,
        pace: ActionCosts | None = None,
        **options: Any,
    ) -> None:
        group = self.group_of_stages()
        ranks, index = dist.get_process_group_ranks(group), dist.get_rank(group)
        if isinstance(schedule, Schedule):
            stages = len(schedule.stages)
            if stages != len(ranks):
                raise ValueError(
                    f"{stages} stages on {len(ranks)} ranks: every stage needs a rank, and every rank a stage"
                )
            if virtual not in (None, schedule.virtual):
                raise ValueError(
                    f"virtual={virtual}: the schedule that you gave has virtual={schedule.virtual}; leave it out"
                )
            check(schedule)  # before any message is sent
            chunks, prepared = schedule.chunks, with_recomputation(schedule) if recompute else schedule
            self.with_chunks: Callable[[int], Schedule] = lru_cache(prepared.with_chunks)
        else:
            self.with_chunks = lru_cache(
                lambda chunks: make_schedule(schedule, len(ranks), micro_batches, chunks, virtual, recompute)
            )
        self.routes_with_chunks = lru_cache(lambda chunks: Routes(self.with_chunks(chunks), index))
        full = self.with_chunks(chunks)  # a wrong number is refused here, and not in the first step
        if pace:
            pace.check_for(full)
        check_limits(model, chunks=chunks)
        self.routes_with_chunks(chunks)
        layout = full.stage_map
        if placement is None and layout.virtual > 1 and layout.positions > len(model):
            raise ValueError(
                f"{layout.stages} stages of {layout.virtual} virtual stages need {layout.positions} blocks, and the "
                f"model has {len(model)}: give it more layers, or the pipeline fewer virtual stages or ranks"
            )
        placement = placement or equal_count(len(model), layout.positions)
        broadcast_weights(model)
        self.stage = Stage.of(model, placement, index, ranks, self.checked_loss, pace, layout, options.get("autocast"))
        super().__init__(self.stage.part, optimizer, loss, **options)
        self.model_group = group
        self.micro_batches, self.chunks = full.micro_batches, chunks
        self.last_stage = layout.stage_at(layout.positions - 1)[0]

    def group_of_stages(self) -> dist.ProcessGroup:
        """Return the group of ranks that form this rank's pipeline: here, all ranks."""
        assert dist.group.WORLD is not None  # a launch creates it
        return dist.group.WORLD

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        """Run all pieces of the batch. Weights change only afterwards."""
        count = batch.mask.sum()
        total = self.execution_of(batch, count).run()
        with span("communication"):
            dist.broadcast(total, self.last_stage)  # only the stage with the model's last part has it
        return total, count, self.execution.states

    def execution_of(self, batch: Batch, count: Tensor, *before_action: Callable[[int | None], None]) -> Execution:
        """Return the execution of the schedule for this batch, which may have fewer steps than there are chunks."""
        chunks = min(self.chunks, batch.steps)
        schedule, routes = self.with_chunks(chunks), self.routes_with_chunks(chunks)
        self.execution = Execution(
            self.stage, schedule, batch, self.divisor(count), self.states, *before_action, routes=routes
        )
        return self.execution


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
        self.part_states: dict[StateKey, States] = {}
        for m in range(schedule.micro_batches):
            for v, virtual in enumerate(stage.virtual):
                places = [place for place, _ in virtual.part.numbered()]
                self.part_states[m, v] = {place: s for place, s in states.get(m, {}).items() if place in places}
        self.state_gradients: dict[StateKey, dict[int, State]] = {}
        self.beginnings: dict[Piece, tuple[Tensor, States, list[Tensor]]] = {}  # what it takes to recompute a piece
        self.saved: dict[Piece, WholePass | SplitPass] = {}  # forward pass done, backward pass pending
        self.for_weights: dict[Piece, Callable[[], None]] = {}  # backward pass done, weight gradients pending
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
            states = self.part_states[key]
            if action.chunk:  # leaves of a new graph, so that the gradients of the states arrive in their `.grad`
                states = {
                    at: (h.detach().requires_grad_(), c.detach().requires_grad_()) for at, (h, c) in states.items()
                }
            if recomputed_later:  # with the state of the random numbers, so that dropout will be the same
                on_gpu = [torch.cuda.get_rng_state(inputs.device)] if inputs.is_cuda else []
                self.beginnings[action.piece] = inputs, states, [torch.get_rng_state(), *on_gpu]
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
        inputs, states, random_numbers = self.beginnings.pop(action.piece)
        with self._working(action), untouched(self.stage.virtual[action.virtual].part):  # BatchNorm counts a call once
            torch.set_rng_state(random_numbers[0])
            if inputs.is_cuda:
                torch.cuda.set_rng_state(random_numbers[1], inputs.device)
            self.saved[action.piece] = self._run(action, inputs, states)

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
            self.for_weights.pop(action.piece)()

    def _run(self, action: Action, inputs: Tensor, states: States) -> WholePass | SplitPass:
        virtual, piece = self.stage.virtual[action.virtual], self._piece(action)

        def finish(outputs: Tensor) -> Tensor:
            """Return what leaves this part of the model: the loss, or what is sent on."""
            return self.stage.loss(outputs, piece)[0] if virtual.is_last else outputs.to(self.stage.message_dtype)

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
        stage = self.stage
        return span(
            NAMES[action.kind], at_least=stage.pace.of(action, stage.index, self.schedule) if stage.pace else 0.0
        )
