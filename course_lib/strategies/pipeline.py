"""Pipeline parallelism: each rank has one or more parts of consecutive blocks, and a batch flows through in pieces.

A `Schedule` sets which rank does what, and in which order. A `Stage` holds a rank's blocks, and an `Execution` runs the
schedule on them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch.distributed as dist
from torch import Tensor

from course_lib.data import Batch
from course_lib.lstm.model import Loss, SequenceModel
from course_lib.planning.actions import Layout
from course_lib.planning.placement import Placement, equal_count
from course_lib.planning.schedule import Schedule, check
from course_lib.planning.schedules import make_schedule, with_recomputation
from course_lib.planning.simulation import ActionCosts
from course_lib.strategies.base import MakeOptimizer, StatesByMicroBatch, Strategy, broadcast_weights, check_limits
from course_lib.strategies.execution import Execution
from course_lib.strategies.mail import Routes
from course_lib.strategies.stage import Stage
from course_lib.trace import span

__all__ = ["Execution", "Pipeline", "Schedules", "Stage", "cut_for"]


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
        self.schedules = Schedules(schedule, len(ranks), micro_batches, chunks, virtual, recompute, pace)
        check_limits(model, chunks=self.schedules.chunks)
        layout, autocast = self.schedules.layout, options.get("autocast")
        placement = placement or cut_for(layout, len(model))
        broadcast_weights(model)
        self.stage = Stage.of(model, placement, index, ranks, self.checked_loss, pace, layout, autocast)
        super().__init__(self.stage.part, optimizer, loss, **options)
        self.model_group = group
        self.micro_batches, self.chunks = self.schedules.micro_batches, self.schedules.chunks

    def group_of_stages(self) -> dist.ProcessGroup:
        """Return the group of ranks that form this rank's pipeline: here, all ranks."""
        assert dist.group.WORLD is not None  # a launch creates it
        return dist.group.WORLD

    def forward_backward(self, batch: Batch) -> tuple[Tensor, Tensor, StatesByMicroBatch]:
        """Run all pieces of the batch. Weights change only afterwards."""
        count = batch.mask.sum()
        schedule, routes = self.schedules.for_batch(batch, self.stage.index)
        self.execution = Execution(self.stage, schedule, batch, self.divisor(count), self.states, routes=routes)
        total = self.execution.run()
        with span("communication"):
            dist.broadcast(total, self.schedules.last_stage)  # only the stage with the model's last part has it
        return total, count, self.execution.states


class Schedules:
    """The schedule for each batch: the same for all, except for batches with fewer steps than chunks."""

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
            check(schedule)  # before any message is sent
            micro_batches, chunks = schedule.micro_batches, schedule.chunks
            prepared = with_recomputation(schedule) if recompute else schedule
            self._make: Callable[[int], Schedule] = lru_cache(prepared.with_chunks)
        else:
            self._make = lru_cache(
                lambda chunks: make_schedule(schedule, stages, micro_batches, chunks, virtual, recompute)
            )
        self._route = lru_cache(lambda chunks, index: Routes(self._make(chunks), index))
        self.micro_batches, self.chunks = micro_batches, chunks
        full_schedule = self._make(chunks)  # refuse a wrong number now, not in the first step
        if pace:
            pace.check_for(full_schedule)
        self.layout = full_schedule.stage_map

    @property
    def last_stage(self) -> int:
        """The stage that has the model's last part."""
        return self.layout.stage_at(self.layout.positions - 1)[0]

    def for_batch(self, batch: Batch, index: int) -> tuple[Schedule, Routes]:
        """Return the schedule for this batch, and the message routes of the stage at `index`."""
        chunks = min(self.chunks, batch.steps)
        return self._make(chunks), self._route(chunks, index)


def cut_for(layout: Layout, blocks: int) -> Placement:
    """Return a placement with the same number of blocks in each part of the model."""
    if layout.virtual > 1 and layout.positions > blocks:
        raise ValueError(
            f"{layout.stages} stages of {layout.virtual} virtual stages need {layout.positions} blocks, and the model "
            f"has {blocks}: give it more layers, or the pipeline fewer virtual stages or ranks"
        )
    return equal_count(blocks, layout.positions)


def _check_given(schedule: Schedule, ranks: int, virtual: int | None) -> None:
    if len(schedule.stages) != ranks:
        raise ValueError(
            f"{len(schedule.stages)} stages on {ranks} ranks: every stage needs a rank, and every rank a stage"
        )
    if virtual not in (None, schedule.virtual):
        raise ValueError(f"virtual={virtual}: the schedule that you gave has virtual={schedule.virtual}; leave it out")
