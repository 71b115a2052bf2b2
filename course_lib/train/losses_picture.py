"""The losses of runs, from their logs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from course_lib.drawing.curves import draw_curves
from course_lib.drawing.picture import Picture
from course_lib.train.log import LogError, read_log


def draw_losses(*logs: str | Path, window: int = 20) -> Picture:
    """Draw one curve for each log: the mean loss of the last `window` updates."""
    paths = list(dict.fromkeys(map(Path, logs)))
    stems = Counter(path.stem for path in paths)
    series = {}
    for path in paths:
        records = read_log(path)
        if not records:
            raise LogError(f"{path} has no records yet: wait for the first update")
        recent = [records[max(0, end - window) : end] for end in range(1, len(records) + 1)]
        means = [sum(record.loss for record in last) / len(last) for last in recent]
        name = path.stem if stems[path.stem] == 1 else str(path)  # two logs may have the same name
        series[name] = [(record.update, mean) for record, mean in zip(records, means, strict=True)]
    return draw_curves(series, x="update", y=f"loss, mean of {window} updates", marks=False)
