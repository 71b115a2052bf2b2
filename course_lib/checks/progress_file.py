"""The file next to the notebooks that records a learner's predictions, tries, hints and points."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.runtime.course_files import desk_folder

if TYPE_CHECKING:
    from course_lib.checks.report import Report

NAME = "progress.json"
PREDICTIONS = "predictions"  # a key next to the exercise numbers


def place() -> Path:
    """Return the path of the progress file: `COURSE_LIB_PROGRESS`, or progress.json in `desk_folder()`."""
    given = os.environ.get("COURSE_LIB_PROGRESS")
    return Path(given) if given is not None else desk_folder() / NAME


def read() -> dict[str, dict[str, Any]]:
    """Return the entry of each exercise (`tries`, `points` of the best try, `hints` taken) and of the predictions."""
    try:
        known = json.loads(place().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {number: entry for number, entry in known.items() if isinstance(entry, dict)}


def record(number: str, report: Report) -> None:
    """Record a try. An untouched stub doesn't count."""
    if report.attempted:
        entry = entry_of(read(), number)
        _write(number, {**entry, "tries": entry["tries"] + 1, "points": max(entry["points"], report.points)})


def tries(number: str) -> int:
    """Return how often the exercise was tried."""
    return entry_of(read(), number)["tries"]


def take_hint(number: str, hints: int) -> int:
    """Count one more hint, up to `hints`, and return the new count."""
    entry = entry_of(read(), number)
    taken = min(entry["hints"] + 1, hints)
    _write(number, {**entry, "hints": taken})
    return taken


def entry_of(known: dict[str, dict[str, Any]], number: str) -> dict[str, int]:
    """Return the entry of an exercise, with 0 for anything invalid: learners can edit the file."""
    entry = known.get(number, {})
    return {name: entry[name] if type(entry.get(name)) is int else 0 for name in ("tries", "points", "hints")}


def prediction_of(known: dict[str, dict[str, Any]], number: str) -> dict[str, Any]:
    """Return the entry of a prediction: what was `said`, and after the run, whether it was `right` or `skipped`."""
    entry = known.get(PREDICTIONS, {}).get(number)
    return entry if isinstance(entry, dict) else {}


def keep_prediction(number: str, **known: Any) -> None:
    """Replace the entry of a prediction."""
    _write(PREDICTIONS, {**read().get(PREDICTIONS, {}), number: known})


def _write(key: str, entry: dict[str, Any]) -> None:
    """Replace one entry. It writes a temporary file and renames it, so an interrupt loses nothing."""
    path = place()
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    aside.write_text(json.dumps({**read(), key: entry}, indent=1, sort_keys=True))
    aside.replace(path)
