"""How a run goes, update by update: written to its log, and shown where the person is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
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
NOT_YET_CHECKED = 10  # updates that a GPU may still be at: they are checked the next time


class NotFinite(ArithmeticError):
    """A run that has nothing more to learn: its loss or its weights are infinite, or no numbers."""


@dataclass(frozen=True)
class PendingLoss:
    """A loss on its way from the device. To wait for it at once would leave a GPU without work for a while."""

    number: Tensor
    has_come: torch.cuda.Event | None
    when: float
    tokens: int  # of its batch

    @classmethod
    def of(cls, update: Update) -> PendingLoss:
        """Start the copy."""
        number, has_come = update.loss.detach().to("cpu", non_blocking=True), None
        if update.loss.is_cuda:
            has_come = torch.cuda.Event()
            has_come.record()
        return cls(number, has_come, time.monotonic(), int(update.batch.lengths.sum()))

    @property
    def is_there(self) -> bool:
        return self.has_come is None or self.has_come.query()

    def value(self) -> float:
        """The loss, waited for if need be."""
        if self.has_come is not None:
            self.has_come.synchronize()
        return self.number.item()


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
        self._unread: list[PendingLoss] = []
        self._unchecked: list[PendingLoss] = []
        self._began = self._read_at = time.monotonic()

    def add(self, update: Update) -> None:
        """Take one update. Its loss is read with those of the next moments, or by `flush`."""
        self.updates += 1
        loss = PendingLoss.of(update)
        self._unread.append(loss)
        self._unchecked.append(loss)
        if self.updates == self.of:
            self.flush()
            self.check_losses()
        if loss.when - self._read_at >= READ_EVERY:
            self._read(sum(1 for _ in takewhile(lambda pending: pending.is_there, self._unread)))
        if self.updates % CHECK_EVERY == 0:
            self.check_losses(but_the_last=NOT_YET_CHECKED if loss.has_come else 0)

    @property
    def mfu(self) -> float | None:
        """Of the last updates that were read, where the devices' peak is known."""
        return round(self.utilization.at(self.tokens_per_second), 4) if self.utilization else None

    def check_losses(self, but_the_last: int = 0) -> None:
        """Raise NotFinite if one of the losses since the last check is not a finite number: on all ranks alike."""
        count = max(0, len(self._unchecked) - but_the_last)
        values = [pending.value() for pending in self._unchecked[:count]]
        before, self._unchecked = self.updates - len(self._unchecked), self._unchecked[count:]
        first = next((place for place, value in enumerate(values) if not math.isfinite(value)), None)
        if first is not None:
            self.flush()
            update = before + first + 1
            raise NotFinite(f"the loss of update {update} is {values[first]}: give a smaller --learning-rate")

    def flush(self) -> None:
        """Read the losses that wait, write them down, and say how far the run is."""
        self._read(len(self._unread))

    def _read(self, count: int) -> None:
        """Read that many of the losses that wait, the oldest."""
        if not count:
            return
        read, self._unread = self._unread[:count], self._unread[count:]
        losses, now = [pending.value() for pending in read], time.monotonic()
        self.tokens_per_second = sum(pending.tokens for pending in read) / max(1e-9, now - self._read_at)
        self.loss, self._read_at = losses[-1], now
        last = self.updates - len(self._unread)
        speed, before = round(self.tokens_per_second, 1), self._seconds_before - self._began
        records = (
            Record(number, loss, speed, round(before + pending.when, 4), self.mfu)
            for number, loss, pending in zip(range(last - count + 1, last + 1), losses, read, strict=True)
        )
        finite = list(takewhile(lambda record: math.isfinite(record.loss), records))  # JSON knows no nan
        for log in (self.log, self.board):
            if log:
                log.write(finite)
        if self.show:
            self.show(Progress(last, self.of, self.loss, self.tokens_per_second, self.mfu))

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
