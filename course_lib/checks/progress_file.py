"""What a learner has predicted, tried and earned, in a file beside the notebooks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.course_files import desk_folder

if TYPE_CHECKING:
    from course_lib.checks.report import Report

NAME = "progress.json"
PREDICTIONS = "predictions"  # the key that they are kept under, beside the numbers of exercises


def place() -> Path:
    """The file: on the desk that we are on, or that is below; else in the folder of the exercises, or where we are."""
    given = os.environ.get("COURSE_LIB_PROGRESS")
    return Path(given) if given is not None else desk_folder() / NAME


def read() -> dict[str, dict[str, Any]]:
    """What is known of each exercise: `tries`, `points` of the best one, `hints` taken; and of the predictions."""
    try:
        known = json.loads(place().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {number: entry for number, entry in known.items() if isinstance(entry, dict)}


def record(number: str, report: Report) -> None:
    """Remember a try. An untouched stub is none."""
    if report.attempted:
        entry = entry_of(read(), number)
        _write(number, {**entry, "tries": entry["tries"] + 1, "points": max(entry["points"], report.points)})


def tries(number: str) -> int:
    """How often an answer was put to the test."""
    return entry_of(read(), number)["tries"]


def take_hint(number: str, hints: int) -> int:
    """Count one more hint, and return how many were taken, at most all."""
    entry = entry_of(read(), number)
    taken = min(entry["hints"] + 1, hints)
    _write(number, {**entry, "hints": taken})
    return taken


def entry_of(known: dict[str, dict[str, Any]], number: str) -> dict[str, int]:
    """What is known of an exercise; the file is a learner's, and may say anything."""
    entry = known.get(number, {})
    return {name: entry[name] if type(entry.get(name)) is int else 0 for name in ("tries", "points", "hints")}


def prediction_of(known: dict[str, dict[str, Any]], number: str) -> dict[str, Any]:
    """What is known of a prediction: what was `said`, and whether it was `right`, once the run has shown it."""
    entry = known.get(PREDICTIONS, {}).get(number)
    return entry if isinstance(entry, dict) else {}


def keep_prediction(number: str, **known: Any) -> None:
    """Remember what is known of a prediction from now on, and nothing else of it."""
    _write(PREDICTIONS, {**read().get(PREDICTIONS, {}), number: known})


def _write(key: str, entry: dict[str, Any]) -> None:
    """Written aside and renamed: an interrupt loses nothing."""
    path = place()
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    aside.write_text(json.dumps({**read(), key: entry}, indent=1, sort_keys=True))
    aside.replace(path)
