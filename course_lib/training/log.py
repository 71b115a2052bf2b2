"""A training run's log: one line of JSON per update, safe to go on with after a crash.

    {"update": 50, "loss": 0.031, "tokens_per_second": 41000.0, "seconds": 1.8, "mfu": 0.31}

`seconds` counts from the first update of the run, without the time in which it did not run. `mfu` is there where the
peak of the devices is known: see `utilization`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


class LogError(ValueError):
    """A file that is not a log; the sentence says what to give instead."""


@dataclass(frozen=True)
class Record:
    """One update of a training run."""

    update: int
    loss: float
    tokens_per_second: float
    seconds: float
    mfu: float | None = None


class Log:
    """Writes records behind those of the updates up to `after`, which it keeps; later ones it drops."""

    def __init__(self, path: str | Path, after: int = 0) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise LogError(f"{path} is a folder: give --log the name of a file")
        kept = [record for record in read_log(path) if record.update <= after] if after and self.path.exists() else []
        self.seconds = kept[-1].seconds if kept else 0.0
        aside = self.path.with_name(f"{self.path.name}.tmp")  # a crash right now must not cost what was logged
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(_lines(kept))
            aside.replace(self.path)
        except OSError as error:
            raise LogError(f"{path} cannot be written ({error.strerror}): give --log another file") from error

    def write(self, records: Iterable[Record]) -> None:
        """Append the records, and return when they are in the file."""
        with self.path.open("a") as file:
            file.write(_lines(records))
            file.flush()
            os.fsync(file.fileno())


def read_log(path: str | Path) -> list[Record]:
    """The records of a log. A last line that was cut short by a crash is left out."""
    try:
        if not Path(path).is_file():  # some devices can be read for ever
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


def _lines(records: Iterable[Record]) -> str:
    known = ({name: value for name, value in asdict(record).items() if value is not None} for record in records)
    return "".join(json.dumps(facts) + "\n" for facts in known)
