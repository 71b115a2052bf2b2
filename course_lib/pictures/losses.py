"""The loss of training runs against their updates, from their logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from course_lib.pictures.curves import curves
from course_lib.pictures.picture import Picture
from course_lib.training.log import LogError, Record, read_log


def losses(*logs: str | Path, window: int = 20) -> Picture:
    """One curve for each log: the mean of the last `window` updates, which the axis says."""
    series = {label: _smoothed(read_log(log), window) for label, log in _labelled(logs).items()}
    for label, log in _labelled(logs).items():
        if not series[label]:
            raise LogError(f"{log} has no records yet: wait for the first update")
    return curves(series, x="update", y=f"loss, mean of {window} updates", marks=False)


def _labelled(logs: Sequence[str | Path]) -> dict[str, Path]:
    """Each log once, by its name; by its whole path where another one has that name."""
    paths = list(dict.fromkeys(map(Path, logs)))
    stems = Counter(path.stem for path in paths)
    return {path.stem if stems[path.stem] == 1 else str(path): path for path in paths}


def _smoothed(records: list[Record], window: int) -> list[tuple[float, float]]:
    recent = [[record.loss for record in records[max(0, end - window) : end]] for end in range(1, len(records) + 1)]
    return [(record.update, sum(each) / len(each)) for record, each in zip(records, recent, strict=True)]
