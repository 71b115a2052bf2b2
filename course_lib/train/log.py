"""How a run is doing, update by update: shown to the user, and written to a log that is safe to continue after a crash.

    {"update": 50, "loss": 0.031, "tokens_per_second": 41000.0, "seconds": 1.8, "mfu": 0.31}

`seconds` counts from the start of the run, without the time between a stop and a resume. `mfu` is present if the
devices' peak is known: see `train.metrics`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from course_lib.launcher.wire.progress import Progress
from course_lib.one_device.loop import READ_EVERY, Update

BEGINNING = '{"update": '  # every line starts with this
CHECK_EVERY = 20  # updates: all ranks check for finite losses after the same one, so that they stop together
NOT_YET_CHECKED = 10  # updates that a GPU may still be running: the next check covers them


class LogError(ValueError):
    """A log that cannot be read or written. The message says what to give instead."""


@dataclass(frozen=True)
class Record:
    """One update of a training run."""

    update: int
    loss: float
    tokens_per_second: float
    seconds: float
    mfu: float | None = None


class Log:
    """Appends records to a log. Keeps the records of updates up to `after`, and drops later ones.

    It creates a new file or continues an existing log; it refuses to write to any other file.
    """

    def __init__(self, path: str | Path, after: int = 0) -> None:
        self.path = Path(path)
        earlier = [record for record in check_log(path) if record.update <= after]
        self.seconds = earlier[-1].seconds if earlier else 0.0
        self._write([], keep=len(earlier))

    def append(self, records: Iterable[Record]) -> None:
        """Append the records, and return once they are in the file."""
        rows = ({name: value for name, value in asdict(record).items() if value is not None} for record in records)
        self._write([json.dumps(row).encode() + b"\n" for row in rows])

    def _write(self, lines: list[bytes], keep: int | None = None) -> None:
        """Append lines, after all but the first `keep` are dropped."""
        try:
            with self.path.open("a+b") as file:
                if keep is not None:
                    file.seek(0)
                    file.truncate(sum(map(len, itertools.islice(file, keep))))
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise LogError(f"{self.path} cannot be written ({error.strerror}): give --log another file") from error


def check_log(path: str | Path) -> list[Record]:
    """Return the records of an earlier run, if any. Refuse a missing folder, and anything that is not a log."""
    if not os.path.isdir(folder := Path(path).parent):
        raise LogError(f"{path} cannot be written (there is no folder {folder}): create it first, or give another file")
    try:
        return read_log(path) if os.path.exists(path) else []
    except LogError as error:
        raise LogError(f"{path} exists and is not a log: give --log another file") from error


def read_log(path: str | Path) -> list[Record]:
    """Return the records of a log, without a last line that a crash cut short."""
    try:
        if not Path(path).is_file():  # some devices never end
            raise FileNotFoundError(path)
        *lines, cut_short = Path(path).read_text().split("\n")
        rows = [json.loads(line) for line in lines]
        is_cut_short = cut_short.startswith(BEGINNING) or BEGINNING.startswith(cut_short)
        if not is_cut_short or not all(math.isfinite(value) for row in rows for value in row.values()):
            raise ValueError(path)
        return [Record(**row) for row in rows]
    except (OSError, AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = "cannot be read" if isinstance(error, OSError) else "is not a log"
        raise LogError(f"{path} {problem}: give the file that `course train --log FILE` wrote") from error


class NotFinite(ArithmeticError):
    """A run that cannot continue: its loss or its weights are infinite or NaN."""


@dataclass(frozen=True)
class PendingLoss:
    """A loss being copied from the device. Waiting for it at once would leave the GPU idle for a while."""

    number: Tensor
    copied: torch.cuda.Event | None
    updated_at: float
    tokens: int  # of its batch

    @classmethod
    def start(cls, update: Update) -> PendingLoss:
        """Start the copy, and return the pending loss."""
        number, copied = update.loss.detach().to("cpu", non_blocking=True), None
        if update.loss.is_cuda:
            copied = torch.cuda.Event()
            copied.record()
        return cls(number, copied, time.monotonic(), int(update.batch.lengths.sum()))

    def value(self) -> float:
        """Wait for the loss if needed, and return it."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.number.item()


class MetricsLogger:
    """Records every update; on rank 0 it also has a `log` and a `show`. It holds only a few losses at a time.

    `utilization` is the MFU at one token per second.
    """

    def __init__(
        self,
        updates: int,
        total: int,
        loss: float,
        *,
        log: Log | None,
        show: Callable[[Progress], None] | None,
        utilization: float | None = None,
    ) -> None:
        self.updates, self.total, self.loss = updates, total, loss
        self.log, self.show, self.utilization = log, show, utilization
        self.tokens_per_second = 0.0
        self._unread: list[PendingLoss] = []
        self._unchecked: list[PendingLoss] = []
        self._read_at = time.monotonic()
        self._began_at = self._read_at - (log.seconds if log else 0.0)

    def add(self, update: Update) -> None:
        """Record one update. Its loss is read a moment later, with a few others, or by `flush`."""
        self.updates += 1
        loss = PendingLoss.start(update)
        self._unread.append(loss)
        self._unchecked.append(loss)
        if self.updates == self.total:
            self.flush()
            self.check_losses()
        if loss.updated_at - self._read_at >= READ_EVERY:
            ready = itertools.takewhile(lambda pending: pending.copied is None or pending.copied.query(), self._unread)
            self.flush(len(list(ready)))
        if self.updates % CHECK_EVERY == 0:
            self.check_losses(but_the_last=NOT_YET_CHECKED if loss.copied else 0)

    @property
    def mfu(self) -> float | None:
        """The MFU of the last updates that were read, if the devices' peak is known."""
        return round(self.utilization * self.tokens_per_second, 4) if self.utilization else None

    def check_losses(self, but_the_last: int = 0) -> None:
        """Raise NotFinite, on all ranks, if a loss since the last check is not finite."""
        count = max(0, len(self._unchecked) - but_the_last)
        values = [pending.value() for pending in self._unchecked[:count]]
        before, self._unchecked = self.updates - len(self._unchecked), self._unchecked[count:]
        first_bad = next((place for place, value in enumerate(values) if not math.isfinite(value)), None)
        if first_bad is not None:
            self.flush()
            update = before + first_bad + 1
            raise NotFinite(f"the loss of update {update} is {values[first_bad]}: give a smaller --learning-rate")

    def flush(self, count: int | None = None) -> None:
        """Read the pending losses, or the oldest `count`, log them, and show the progress."""
        count = len(self._unread) if count is None else count
        if not count:
            return
        first_update = self.updates - len(self._unread) + 1
        read, self._unread = self._unread[:count], self._unread[count:]
        losses, now = [pending.value() for pending in read], time.monotonic()
        self.tokens_per_second = sum(pending.tokens for pending in read) / max(1e-9, now - self._read_at)
        self.loss, self._read_at = losses[-1], now
        speed = round(self.tokens_per_second, 1)
        records = (
            Record(first_update + place, loss, speed, round(pending.updated_at - self._began_at, 4), self.mfu)
            for place, (loss, pending) in enumerate(zip(losses, read, strict=True))
        )
        if self.log:
            self.log.append(itertools.takewhile(lambda record: math.isfinite(record.loss), records))  # JSON has no NaN
        if self.show:
            self.show(Progress(first_update + count - 1, self.total, self.loss, self.tokens_per_second, self.mfu))

    def skip_time(self) -> None:
        """Restart the clock: the time since the last update was not spent on training."""
        self._read_at = time.monotonic()
