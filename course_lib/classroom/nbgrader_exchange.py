"""The same with nbgrader's exchange, for a class that fetches and submits there; an assignment is a lesson."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_lib.classroom.exchange import BadExchange, exercise_notebooks, release
from course_lib.grading.gradebook import let_nbgrader_find_its_programs


def release_in_nbgrader(folder: Path, course: str, lessons: Sequence[str] = ()) -> list[str]:
    """Lay the exercises into `release/` of nbgrader's course folder, and from there into the exchange."""
    api = _api(folder, course)
    names = release(folder / "release", lessons)
    for name in names:
        _done(api.release_assignment(name), name)
    return names


def collect_from_nbgrader(folder: Path, course: str, lessons: Sequence[str] = ()) -> str:
    """Bring what was submitted, if it is newer, into `submitted/` of nbgrader's course folder."""
    api = _api(folder, course)
    names = [path.stem for path in exercise_notebooks(lessons).values()]
    found = {name: _collected(api, name) for name in names}
    told = ", ".join(f"{name} of {count}" for name, count in found.items() if count) or "nothing was submitted yet"
    return f"In {folder / 'submitted'}: {told}. Grade them with `course grade {folder / 'submitted'} --out GRADES`"


def _collected(api, name: str) -> int:
    """How many students have submitted this one, once theirs are here."""
    if name not in api.get_released_assignments():
        return 0
    _done(api.collect(name, update=True), name)
    return len(api.get_submitted_students(name))


def _api(folder: Path, course: str):
    """nbgrader, with the settings that it finds in its course folder."""
    if not re.fullmatch(r"\w[\w .-]{0,99}", course):
        raise BadExchange(f"--nbgrader {course}: give the name of nbgrader's course: letters, digits, - and _")
    if importlib.util.find_spec("nbgrader") is None:
        raise BadExchange("nbgrader is not installed: pip install -e '.[nbgrader]', or leave out --nbgrader")
    from nbgrader.apps import NbGrader, NbGraderAPI
    from traitlets.config import Application

    let_nbgrader_find_its_programs()
    folder.mkdir(parents=True, exist_ok=True)
    app = NbGrader()
    Application.load_config_file(app, "nbgrader_config", [*app.config_file_paths[::-1], str(folder.absolute())])
    app.config.CourseDirectory.root = str(folder.absolute())
    app.config.CourseDirectory.course_id = course
    return NbGraderAPI(config=app.config)


def _done(result: dict[str, Any] | None, name: str) -> None:
    if not result or not result["success"]:
        said = str((result or {}).get("error") or (result or {}).get("log") or "").strip().splitlines()
        raise BadExchange(f"nbgrader could not do that for {name}: {said[-1] if said else 'it does not say why'}")
