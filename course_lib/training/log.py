"""A training run's log: one line of JSON per update, safe to continue after a crash.

    {"update": 50, "loss": 0.031, "tokens_per_second": 41000.0, "seconds": 1.8, "mfu": 0.31}

`seconds` counts from the start of the run, without the time between a stop and a resume. `mfu` is present if the
devices' peak is known: see `metrics.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

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
        earlier = [record for record in check_log(path) if record.update <= after]
        self.seconds = earlier[-1].seconds if earlier else 0.0
        with self._open() as file:
            file.seek(0)
            file.truncate(sum(len(line) for line in itertools.islice(file, len(earlier))))

    def append(self, records: Iterable[Record]) -> None:
        """Append the records, and return once they are in the file."""
        rows = ({name: value for name, value in asdict(record).items() if value is not None} for record in records)
        with self._open() as file:
            file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        try:
            with self.path.open("a+b") as file:
                yield file
        except OSError as error:
            raise LogError(f"{self.path} cannot be written ({error.strerror}): give --log another file") from error


def check_log(path: str | Path) -> list[Record]:
    """Return the records of an earlier run, if any. Refuse a missing folder, and anything that is not a log."""
    if not os.path.isdir(folder := Path(path).parent):
        raise LogError(f"{path} cannot be written (there is no folder {folder}): create it first, or give another file")
    if not os.path.exists(path):
        return []
    try:
        return read_log(path)
    except LogError as error:
        raise LogError(f"{path} exists and is not a log: give --log another file") from error


def read_log(path: str | Path) -> list[Record]:
    """Return the records of a log, without a last line that a crash cut short."""
    advice = "give the file that `course train --log FILE` wrote"
    try:
        if not Path(path).is_file():  # some devices never end
            raise FileNotFoundError(path)
        *lines, cut_short = Path(path).read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LogError(f"{path} cannot be read: {advice}") from error
    try:
        rows = [json.loads(line) for line in lines]
        is_cut_short = cut_short.startswith(BEGINNING) or BEGINNING.startswith(cut_short)
        if not is_cut_short or not all(math.isfinite(value) for row in rows for value in row.values()):
            raise ValueError(path)
        return [Record(**row) for row in rows]
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LogError(f"{path} is not a log: {advice}") from error
