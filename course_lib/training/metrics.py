"""How a run goes, update by update: written to its log, and shown where the person is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import takewhile

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.launchers.process.progress_bar import Progress
from course_lib.strategies import Strategy
from course_lib.strategies.shards import local_part
from course_lib.training.log import Log, Record
from course_lib.training.loop import READ_EVERY, Update
from course_lib.training.tensorboard import TensorboardLog
from course_lib.training.utilization import Utilization

CHECK_EVERY = 20  # updates: whether losses are finite is asked by all ranks after the same one, to end together


class NotFinite(ArithmeticError):
    """A run that has nothing more to learn: its loss or its weights are infinite, or no numbers."""


class MetricsLogger:
    """Is told of every update; on rank 0 it also has a `log` and a `show`. The losses that it holds are few."""

    def __init__(
        self,
        updates: int,
        of: int,
        loss: float,
        *,
        log: Log | None,
        show: Callable[[Progress], None] | None,
        board: TensorboardLog | None = None,
        utilization: Utilization | None = None,
    ) -> None:
        self.updates, self.of, self.loss = updates, of, loss
        self.log, self.board, self.show, self.utilization = log, board, show, utilization
        self.tokens_per_second = 0.0
        self._seconds_before = log.seconds if log else 0.0
        self._unread: list[tuple[Tensor, float]] = []  # loss, and when
        self._unchecked: list[Tensor] = []  # losses
        self._tokens, self._began = 0, time.monotonic()
        self._read_at = self._began

    def add(self, update: Update) -> None:
        """Take one update. Its loss is read with those of the next moments, or by `flush`."""
        self.updates += 1
        self._unread.append((update.loss, time.monotonic()))
        self._unchecked.append(update.loss)
        self._tokens += int(update.batch.lengths.sum())
        if self.updates == self.of or time.monotonic() - self._read_at >= READ_EVERY:
            self.flush()
        if self.updates == self.of or self.updates % CHECK_EVERY == 0:
            self.check_losses()

    @property
    def mfu(self) -> float | None:
        """Of the last updates that were read, where the devices' peak is known."""
        return round(self.utilization.at(self.tokens_per_second), 4) if self.utilization else None

    def check_losses(self) -> None:
        """Raise NotFinite if one of the losses since the last check is not a finite number: on all ranks alike."""
        losses, self._unchecked = self._unchecked, []
        if losses and not torch.stack(losses).isfinite().all():
            self.flush()
            values = [loss.item() for loss in losses]
            first = next(place for place, value in enumerate(values) if not math.isfinite(value))
            update = self.updates - len(losses) + first + 1
            raise NotFinite(f"the loss of update {update} is {values[first]}: give a smaller --learning-rate")

    def flush(self) -> None:
        """Read the losses that wait, write them down, and say how far the run is."""
        if not self._unread:
            return
        losses = [loss.item() for loss, _ in self._unread]
        self.tokens_per_second = self._tokens / max(1e-9, time.monotonic() - self._read_at)
        first, self.loss = self.updates - len(losses) + 1, losses[-1]
        speed = round(self.tokens_per_second, 1)
        records = (
            Record(number, loss, speed, round(self._seconds_before + when - self._began, 4), self.mfu)
            for number, loss, (_, when) in zip(range(first, self.updates + 1), losses, self._unread, strict=True)
        )
        finite = list(takewhile(lambda record: math.isfinite(record.loss), records))  # JSON knows no nan
        for log in (self.log, self.board):
            if log:
                log.write(finite)
        if self.show:
            self.show(Progress(self.updates, self.of, self.loss, self.tokens_per_second, self.mfu))
        self._unread, self._tokens, self._read_at = [], 0, time.monotonic()

    def skip_time(self) -> None:
        """Begin to count again: what was done since the last update was no training."""
        self._read_at = time.monotonic()


def check_weights(strategy: Strategy, update: int) -> None:
    """Raise NotFinite, on all ranks alike, if a weight of any rank is no finite number. A finite loss does not say."""
    parts = [local_part(shard.tensor) for shard in strategy.shards().values()]
    finite = torch.stack([torch.ones((), dtype=torch.bool), *(part.isfinite().all().cpu() for part in parts)]).all()
    everywhere = finite.to(torch.uint8).to(strategy.device)
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
    if not everywhere:
        raise NotFinite(f"the weights after update {update} are not finite: give a smaller --learning-rate")
