"""What a training run must not lose: its log and its checkpoints, kept update by update."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from course_lib import checkpoint
from course_lib.checkpoint import Checkpoint, Position
from course_lib.data import Batch
from course_lib.launchers.progress import Progress
from course_lib.log import Log, Record
from course_lib.strategies import Strategy
from course_lib.training import Reader

if TYPE_CHECKING:
    from course_lib.train import Settings

NOTED_EVERY = 0.25  # seconds: to read a loss is to wait for the GPU, so losses are read several at a time


class Keeper:
    """Is told of every update. Rank 0's writes the log and calls `show`; all of them together save checkpoints."""

    def __init__(
        self,
        settings: Settings,
        strategy: Strategy,
        reader: Reader,
        saved: Checkpoint | None,
        show: Callable[[Progress], None],
    ) -> None:
        self.settings, self.strategy, self.reader, self.show = settings, strategy, reader, show
        self.updates = saved.position.updates if saved else 0
        self.loss = saved.notes["loss"] if saved else float("nan")
        self.tokens_per_second = 0.0
        self.is_first_rank = dist.get_rank() == 0
        self.log = Log(settings.log, after=self.updates) if settings.log and self.is_first_rank else None
        self.before = self.log.seconds if self.log else 0.0
        self.waiting: list[tuple[Tensor, float]] = []  # loss, and when
        self.tokens, self.began = 0, time.monotonic()
        self.noted = self.began

    def keep(self, loss: Tensor, batch: Batch) -> None:
        """Take one update's loss, and the global batch that gave it."""
        self.updates += 1
        self.waiting.append((loss, time.monotonic()))
        self.tokens += int(batch.lengths.sum())
        is_last = self.updates == self.settings.updates
        saves = self.settings.checkpoint is not None and (is_last or self.updates % self.settings.every == 0)
        if saves or is_last or time.monotonic() - self.noted >= NOTED_EVERY:
            self._note()
        if saves:
            self._save()

    def _note(self) -> None:
        """Read the losses that wait, write them down, and say how far the run is."""
        losses = [loss.item() for loss, _ in self.waiting]
        self.tokens_per_second = self.tokens / max(1e-9, time.monotonic() - self.noted)
        first, self.loss = self.updates - len(losses) + 1, losses[-1]
        records = [
            Record(number, loss, round(self.tokens_per_second, 1), round(self.before + when - self.began, 4))
            for number, loss, (_, when) in zip(range(first, self.updates + 1), losses, self.waiting, strict=True)
        ]
        if self.log:
            self.log.write(records)
        if self.is_first_rank:
            self.show(Progress(self.updates, self.settings.updates, self.loss, self.tokens_per_second))
        self.waiting, self.tokens, self.noted = [], 0, time.monotonic()

    def _save(self) -> None:
        # The log is written by now: whatever a checkpoint has seen is in the log, and what is later will be dropped.
        position = Position(self.updates, self.reader.epoch, self.reader.batch)
        notes = {"loss": self.loss, "order": self.settings.order}
        checkpoint.save(self.strategy, self.settings.checkpoint, position, notes=notes)
        self.noted = time.monotonic()
