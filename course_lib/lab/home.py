"""The home page of a desk: its lessons with their minutes, what is done in each, and what comes next.

Everything is read from the desk's notebooks and its progress file. Nothing here imports PyTorch: the page is the first
thing a learner sees. The page asks for `course/home`, which this module adds to the Jupyter server as an extension.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.lab.cards import ROWS, card_picture
from course_lib.runtime.course_files import BadNotebook, Cell, desk_folder, parse, source

TITLE = re.compile(r"# (?:Exercises )?\d\d · (.+)")
SECTION = re.compile(r"^## (.+?)\s*$", re.MULTILINE)
MINUTES = re.compile(r"<small>(\d+) minutes?</small>")
ASKS = re.compile(r"""^predict\(\s*["']([\d.]+)["']""", re.MULTILINE)
EXERCISE = re.compile(r"## (\d\d\.\d+) (.+?)\s*\n+\*[^*]*?(\d+) minutes, (\d+) points?\*")


@dataclass(frozen=True)
class Step:
    """Something to do: a prediction or an exercise, and where it is."""

    words: str
    path: str
    cell: str
    state: str  # "", or how it ended: right, wrong, skipped, passed

    def shown(self) -> dict[str, str]:
        """Return what the page needs to offer this step."""
        return {"words": self.words, "path": self.path, "fragment": f"#cell-id={self.cell}"}


def home(folder: Path) -> dict[str, Any]:
    """Return what the home page shows about the desk in this folder."""
    progress = _progress(folder)
    lessons = [_lesson(folder, number, progress) for number in ROWS]
    lessons = [lesson for lesson in lessons if lesson["path"]]
    begun = [place for place, lesson in enumerate(lessons) if lesson["begun"]]
    start = begun[-1] if begun else 0
    later = (lesson["next"] for lesson in (*lessons[start:], *lessons[:start]))
    totals = {
        name: [sum(lesson[name][place] for lesson in lessons) for place in range(2)] for name in ("predicted", "passed")
    }
    return {"lessons": lessons, "begun": bool(begun), "next": next(filter(None, later), None), **totals}


def _lesson(folder: Path, number: str, progress: dict[str, Any]) -> dict[str, Any]:
    """Return the card of a lesson; its path is empty if the desk doesn't have it."""
    predictions = list(_predictions(folder, number, progress.get("predictions")))
    exercises = list(_exercises(folder, number, progress))
    path, cells = _notebook(folder, "notebooks", number)
    if not path:
        path, cells = _notebook(folder, "exercises", number)
    texts = [source(cell) for cell in cells if cell["cell_type"] == "markdown"]
    title = next((match.group(1) for text in texts if (match := TITLE.match(text))), "")
    minutes = [int(match) for text in texts for match in MINUTES.findall(text)]
    minutes = minutes or [int(match[2]) for text in texts for match in EXERCISE.findall(text)]
    steps = [*predictions, *exercises]
    return {
        "number": number,
        "title": title.partition(":")[0],
        "path": path,
        "exercises": _notebook(folder, "exercises", number)[0],
        "picture": card_picture(number),
        "minutes": sum(minutes),
        "predicted": [sum(step.state in ("right", "wrong") for step in predictions), len(predictions)],
        "surprised": sum(step.state == "wrong" for step in predictions),
        "passed": [sum(step.state == "passed" for step in exercises), len(exercises)],
        "begun": any(step.state for step in steps),
        "next": _next_open(steps),
        "exercise": _first_open(exercises),
    }


def _next_open(steps: list[Step]) -> dict[str, str] | None:
    """Return the first open step after the last that is done; if there is none, the first of all."""
    begun = max((place for place, step in enumerate(steps, 1) if step.state not in ("", "tried")), default=0)
    return _first_open(steps[begun:] + steps[:begun])


def _first_open(steps: list[Step]) -> dict[str, str] | None:
    return next((step.shown() for step in steps if step.state in ("", "tried")), None)


def _predictions(folder: Path, number: str, answers: Any) -> Iterator[Step]:
    path, cells = _notebook(folder, "notebooks", number)
    section = section_cell = ""
    for cell in cells:
        if cell["cell_type"] == "markdown" and (match := SECTION.search(source(cell))):
            section, section_cell = match.group(1), str(cell.get("id", ""))
        elif cell["cell_type"] == "code":
            for number_asked in ASKS.findall(source(cell)):
                entry = answers.get(number_asked) if isinstance(answers, dict) else None
                state = _outcome(entry) if isinstance(entry, dict) else ""
                yield Step(f"{number}, section {section}", path, section_cell, state)


def _outcome(entry: dict[str, Any]) -> str:
    if "right" in entry:
        return "right" if entry["right"] is True else "wrong"
    return "skipped" if "skipped" in entry else ""


def _exercises(folder: Path, number: str, progress: dict[str, Any]) -> Iterator[Step]:
    path, cells = _notebook(folder, "exercises", number)
    for cell in cells:
        match = EXERCISE.match(source(cell)) if cell["cell_type"] == "markdown" else None
        if match:
            entry = progress.get(match.group(1))
            entry = entry if isinstance(entry, dict) else {}
            passed = entry.get("points") == int(match.group(4))
            state = "passed" if passed else "tried" if entry.get("tries") else ""
            yield Step(f"exercise {match.group(1)}, {match.group(2)}", path, str(cell.get("id", "")), state)


def _notebook(folder: Path, room: str, number: str) -> tuple[str, list[Cell]]:
    """Return the path and the cells of a lesson's notebook; empty if there is none, or a learner has broken it."""
    for path in sorted((folder / room).glob(f"{number}_*.ipynb"), key=lambda path: len(path.name)):  # copies are longer
        try:
            return f"{room}/{path.name}", parse(path.read_bytes())["cells"]
        except (OSError, BadNotebook):
            continue
    return "", []


def _progress(folder: Path) -> dict[str, Any]:
    try:
        progress = json.loads((folder / "progress.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return progress if isinstance(progress, dict) else {}


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "course_lib.lab.home"}]


def _load_jupyter_server_extension(app: Any) -> None:
    from jupyter_server.base.handlers import APIHandler
    from jupyter_server.utils import url_path_join
    from tornado.web import authenticated

    folder = desk_folder()

    class Home(APIHandler):
        """`GET`: the lessons, what is done in them, and what comes next."""

        @authenticated
        def get(self) -> None:
            self.finish(home(folder))

    address = url_path_join(app.web_app.settings["base_url"], "course", "home")
    app.web_app.add_handlers(".*$", [(address, Home)])
