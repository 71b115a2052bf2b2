"""A training run's log: one line of JSON per update, safe to continue after a crash.

    {"update": 50, "loss": 0.031, "tokens_per_second": 41000.0, "seconds": 1.8, "mfu": 0.31}

`seconds` counts from the start of the run, without the time between a stop and a resume. `mfu` is present if the
devices' peak is known: see `metrics.py`.

With `--tensorboard FOLDER` the records go to TensorBoard, through PyTorch's writer.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

BEGINNING = '{"update": '  # every line starts with this


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
        check_log(path)
        try:
            self.path.touch()
            earlier = [record for record in read_log(path) if record.update <= after]
            with self.path.open("rb") as file:
                kept = sum(len(line) for line in itertools.islice(file, len(earlier)))
            os.truncate(self.path, kept)
        except OSError as error:
            raise self._cannot_be_written(error) from error
        self.seconds = earlier[-1].seconds if earlier else 0.0

    def append(self, records: Iterable[Record]) -> None:
        """Append the records, and return once they are in the file."""
        rows = ({name: value for name, value in asdict(record).items() if value is not None} for record in records)
        try:
            with self.path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._cannot_be_written(error) from error

    def _cannot_be_written(self, error: OSError) -> LogError:
        return LogError(f"{self.path} cannot be written ({error.strerror}): give --log another file")


def check_log(path: str | Path) -> None:
    """Refuse a path in a missing folder, and anything that is not a log: some other file, a device, a pipe."""
    if not os.path.isdir(folder := Path(path).parent):
        raise LogError(f"{path} cannot be written (there is no folder {folder}): create it first, or give another file")
    if os.path.isdir(path) or (os.path.exists(path) and not os.path.isfile(path)):
        kind = "folder" if os.path.isdir(path) else "device or a pipe"
        raise LogError(f"{path} is a {kind}: give --log the name of a file")
    try:
        if os.path.exists(path):
            read_log(path)
            last_line = Path(path).read_text().split("\n")[-1]
            if not (last_line.startswith(BEGINNING) or BEGINNING.startswith(last_line)):
                raise LogError(f"{path} ends with something else")
    except LogError as error:
        raise LogError(f"{path} exists and is not a log: give --log another file") from error


def read_log(path: str | Path) -> list[Record]:
    """Return the records of a log, without a last line that a crash cut short."""
    try:
        if not Path(path).is_file():  # some devices never end
            raise FileNotFoundError(path)
        *lines, _cut_short = Path(path).read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LogError(f"{path} cannot be read: give the file that `course train --log FILE` wrote") from error
    try:
        return [_record(json.loads(line)) for line in lines]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LogError(f"{path} is not a log: give the file that `course train --log FILE` wrote") from error


def _record(facts: dict) -> Record:
    record = Record(**facts)
    if any(isinstance(value, str | bool) for value in facts.values()):
        raise TypeError("a record has numbers")
    mfu = None if record.mfu is None else float(record.mfu)
    return Record(int(record.update), float(record.loss), float(record.tokens_per_second), float(record.seconds), mfu)


def check_has_tensorboard() -> None:
    """Refuse if the package that PyTorch's writer needs is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        raise LogError("--tensorboard needs the package tensorboard: pip install tensorboard")


class TensorboardLog:
    """Writes the loss and the speed of every update. Hides what an earlier run wrote for updates after `after`."""

    def __init__(self, folder: str, after: int = 0) -> None:
        check_has_tensorboard()
        from torch.utils.tensorboard.writer import SummaryWriter

        try:
            self.writer = SummaryWriter(folder, purge_step=after + 1)
        except OSError as error:
            raise LogError(
                f"{folder} cannot be written ({error.strerror}): give --tensorboard another folder"
            ) from error

    def append(self, records: Iterable[Record]) -> None:
        """Append the records, and flush the writer."""
        for record in records:
            for name in ("loss", "tokens_per_second", "mfu"):
                if (value := getattr(record, name)) is not None:
                    self.writer.add_scalar(name, value, record.update)
        self.writer.flush()
