"""Pipeline parallelism: each rank has some consecutive blocks, or several such parts, and a batch flows in pieces.

Which rank does what in which order is a `Schedule`. A `Stage` is a rank's blocks, and an `Execution` does what the
schedule says with them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch.distributed as dist
from torch import Tensor

from course_lib.data import Batch
from course_lib.lstm.model import Loss, SequenceModel
from course_lib.planning.placement import Placement, equal_count
from course_lib.planning.schedules import Layout, Schedule, check, make_schedule, with_recomputation
from course_lib.planning.simulation import ActionCosts
from course_lib.strategies.base import (
    MakeOptimizer,
    StatesByMicroBatch,
    Strategy,
    blocks_of,
    broadcast_weights,
    rank_and_ranks,
)
from course_lib.strategies.execution import Execution
from course_lib.strategies.mail import Routes
from course_lib.strategies.stage import Stage
from course_lib.trace import span

__all__ = ["Execution", "Pipeline", "Schedules", "Stage", "cut_for"]


class Pipeline(Strategy):
    """One stage per rank. A batch is cut into `micro_batches` and each of them into `chunks` of time.

    `schedule` is a name (naive, gpipe, 1f1b, wavefront, interleaved, looped-bfs, zb-h1, zb-v) or a `Schedule` of your
    own, which then says how many pieces there are. With several `virtual` stages a rank has several parts of the model;
    a `placement` then numbers all parts in the model's order. With `recompute`, activations are dropped and computed
    again. A batch with fewer steps than `chunks` is cut into as many as it has. With `pace`, an action takes at least
    as long as those costs say, and a message is under way as long as their link. Every rank reads the whole batch: the
    first part its inputs, the last its targets, and all of them its shape.
    """

    applies_precision = True  # the stage does

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
        rank, stages = rank_and_ranks()
        self.schedules = Schedules(schedule, stages, micro_batches, chunks, virtual, recompute, pace)
        placement = placement or cut_for(self.schedules.places, len(model))
        broadcast_weights(model)
        self.stage = Stage.of(
            model,
            placement,
            rank,
            range(stages),
            self.checked_loss,
            pace,
            self.schedules.places,
            options.get("autocast"),
        )
        super().__init__(self.stage.part, optimizer, loss, **options)
        self.untried = blocks_of(model, self.model)
        self.model_group = dist.group.WORLD
        self.micro_batches, self.chunks = self.schedules.micro_batches, self.schedules.chunks

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        """All pieces of the batch: until they are done, no weight changes."""
        count = batch.mask.sum()
        schedule, routes = self.schedules.of(batch, self.stage.place)
        self.execution = Execution(self.stage, schedule, batch, self.divisor(count), self.states, routes=routes)
        total = self.execution.run()
        with span("communication"):
            dist.broadcast(total, self.schedules.last_stage)  # only the stage with the model's last part knows it
        return total, count, self.execution.states


class Schedules:
    """Which schedule a batch is run with: the same for all, but for batches that have fewer steps than chunks."""

    def __init__(
        self,
        schedule: str | Schedule,
        stages: int,
        micro_batches: int,
        chunks: int,
        virtual: int | None = None,
        recompute: bool = False,
        pace: ActionCosts | None = None,
    ) -> None:
        if isinstance(schedule, Schedule):
            _check_given(schedule, stages, virtual)
            check(schedule)  # before a message is sent
            micro_batches, chunks = schedule.micro_batches, schedule.chunks
            whole = with_recomputation(schedule) if recompute else schedule
            self._make: Callable[[int], Schedule] = lru_cache(whole.with_chunks)
        else:
            self._make = lru_cache(
                lambda chunks: make_schedule(schedule, stages, micro_batches, chunks, virtual, recompute)
            )
        self._route = lru_cache(lambda chunks, place: Routes(self._make(chunks), place))
        self.micro_batches, self.chunks = micro_batches, chunks
        made = self._make(chunks)  # a wrong number is refused here, and not in the first step
        if pace:
            pace.check_for(made)
        self.places = made.places

    @property
    def last_stage(self) -> int:
        """The stage that has the model's last part."""
        return self.places.place(self.places.positions - 1)[0]

    def of(self, batch: Batch, place: int) -> tuple[Schedule, Routes]:
        """The schedule for this batch, and the way of the messages of the stage at `place`."""
        chunks = min(self.chunks, batch.steps)
        return self._make(chunks), self._route(chunks, place)


def cut_for(places: Layout, blocks: int) -> Placement:
    """Equally many blocks for each part of the model."""
    if places.virtual > 1 and places.positions > blocks:
        raise ValueError(
            f"{places.stages} stages of {places.virtual} virtual stages need {places.positions} blocks, and the model "
            f"has {blocks}: give it more layers, or the pipeline fewer virtual stages or ranks"
        )
    return equal_count(blocks, places.positions)


def _check_given(schedule: Schedule, ranks: int, virtual: int | None) -> None:
    if len(schedule.stages) != ranks:
        raise ValueError(
            f"{len(schedule.stages)} stages on {ranks} ranks: every stage needs a rank, and every rank a stage"
        )
    if virtual not in (None, schedule.virtual):
        raise ValueError(f"virtual={virtual}: the schedule that you gave has virtual={schedule.virtual}; leave it out")
