"""How a run goes, update by update: written to its log, and shown where the person is."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from course_lib.launchers.process.progress_bar import Progress
from course_lib.training.log import Log, Record
from course_lib.training.loop import READ_EVERY, Update


class MetricsLogger:
    """Is told of every update; on rank 0 it also has a `log` and a `show`. The losses that it holds are few."""

    def __init__(
        self, updates: int, of: int, loss: float, *, log: Log | None, show: Callable[[Progress], None] | None
    ) -> None:
        self.updates, self.of, self.loss = updates, of, loss
        self.log, self.show = log, show
        self.tokens_per_second = 0.0
        self._seconds_before = log.seconds if log else 0.0
        self._unread: list[tuple[Tensor, float]] = []  # loss, and when
        self._tokens, self._began = 0, time.monotonic()
        self._read_at = self._began

    def add(self, update: Update) -> None:
        """Take one update. Its loss is read with those of the next moments, or by `flush`."""
        self.updates += 1
        self._unread.append((update.loss, time.monotonic()))
        self._tokens += int(update.batch.lengths.sum())
        if self.updates == self.of or time.monotonic() - self._read_at >= READ_EVERY:
            self.flush()

    def flush(self) -> None:
        """Read the losses that wait, write them down, and say how far the run is."""
        if not self._unread:
            return
        losses = [loss.item() for loss, _ in self._unread]
        self.tokens_per_second = self._tokens / max(1e-9, time.monotonic() - self._read_at)
        first, self.loss = self.updates - len(losses) + 1, losses[-1]
        if self.log:
            speed = round(self.tokens_per_second, 1)
            self.log.write(
                Record(number, loss, speed, round(self._seconds_before + when - self._began, 4))
                for number, loss, (_, when) in zip(range(first, self.updates + 1), losses, self._unread, strict=True)
            )
        if self.show:
            self.show(Progress(self.updates, self.of, self.loss, self.tokens_per_second))
        self._unread, self._tokens, self._read_at = [], 0, time.monotonic()

    def skip_time(self) -> None:
        """Begin to count again: what was done since the last update was no training."""
        self._read_at = time.monotonic()
