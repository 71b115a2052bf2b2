"""What a learner has tried and earned, in a file beside the notebooks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_lib.checks.exercise import Exercise
    from course_lib.checks.judging import Report

NAME = "progress.json"
DESK = Path(".course", "laid_out.json")  # a folder that has it is a desk: see course_lib/lab/desk.py


def place() -> Path:
    """The file: on the desk that we are on, or that is below; else in the folder of the notebook that is open."""
    if "COURSE_LIB_PROGRESS" in os.environ:
        return Path(os.environ["COURSE_LIB_PROGRESS"])
    here = Path.cwd()
    for folder in (here, *here.parents, here / "work"):
        if (folder / DESK).is_file():
            return folder / NAME
    return here / "exercises" / NAME if (here / "exercises").is_dir() else here / NAME


def read() -> dict[str, dict[str, Any]]:
    """What is known of each exercise: `tries`, `points` of the best one, `hints` taken."""
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
        entry = _entry(read(), number)
        _write(number, tries=entry["tries"] + 1, points=max(entry["points"], report.points))


def tries(number: str) -> int:
    """How often an answer was put to the test."""
    return _entry(read(), number)["tries"]


def take_hint(number: str, hints: int) -> int:
    """Count one more hint, and return how many were taken, at most all."""
    taken = min(_entry(read(), number)["hints"] + 1, hints)
    _write(number, hints=taken)
    return taken


def table(exercises: dict[str, Exercise]) -> str:
    """A line for each exercise, and a bar for each lesson."""
    known, lines = read(), []
    for lesson in sorted({exercise.lesson for exercise in exercises.values()}):
        ours = [exercise for exercise in exercises.values() if exercise.lesson == lesson]
        earned, most = sum(_entry(known, e.number)["points"] for e in ours), sum(e.points for e in ours)
        lines.append(f"lesson {lesson}  {_bar(earned, most)}  {earned} of {most} points")
        lines += [f"  {_line(exercise, _entry(known, exercise.number))}" for exercise in ours]
    return "\n".join(lines)


def _line(exercise: Exercise, entry: dict[str, int]) -> str:
    text = f"{'✓' if entry['points'] == exercise.points else '·'} {exercise.number} {exercise.title}"
    details = [f"{entry['points']} of {exercise.points} points"]
    for name, one in (("tries", "try"), ("hints", "hint")):
        if entry[name]:
            details.append(f"{entry[name]} {one if entry[name] == 1 else name}")
    return f"{text}: {', '.join(details)}" if entry["tries"] else f"{text}: {exercise.minutes} minutes"


def _bar(earned: int, most: int, width: int = 20) -> str:
    done = width * earned // most
    return "█" * done + "░" * (width - done)


def _entry(known: dict[str, dict], number: str) -> dict[str, int]:
    """What is known of an exercise; the file is a learner's, and may say anything."""
    entry = known.get(number, {})
    return {name: entry[name] if type(entry.get(name)) is int else 0 for name in ("tries", "points", "hints")}


def _write(number: str, **changed: int) -> None:
    """Written aside and renamed: an interrupt loses nothing."""
    known = read()
    known[number] = {**_entry(known, number), **changed}
    path = place()
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    aside.write_text(json.dumps(known, indent=1, sort_keys=True))
    aside.replace(path)
