"""What the site adds to a lesson: how to run it, and maps of lessons and exercises with their hours."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from repository import ROOT, address, binder_address, source_address

from course_lib.authoring.outline import outlines
from course_lib.checks import exercises
from course_lib.checks.exercise import Exercise

ROW = re.compile(r"^\| (\d\d) \| \[(.+?)\]\((.+?)\) \| \d+ \| (.+) \|$", re.MULTILINE)


def lesson_notebook(notebook: dict[str, Any], file: str) -> dict[str, Any]:
    """A lesson with a line on how to run it below its first cell."""
    box = {"cell_type": "markdown", "metadata": {}, "source": how_to_run(file), "id": "how-to-run"}
    notebook["cells"].insert(1, box)
    return notebook


def how_to_start() -> str:
    """The two commands that open the course; where the repository is on the web, the first fetches it."""
    if address():
        return f"```\ngit clone {address()} course\nmake -C course lab\n```"
    return "In the course's folder, which is a clone of its repository:\n\n```\npip install -e .\ncourse lab\n```"


def how_to_run(file: str) -> str:
    """The ways to a lesson that can be run, as a box: here, on Binder, its exercises and its source."""
    name = Path(file).stem
    ways = [f"[Exercises](../exercises/{name}.ipynb)"]
    ways += [f"[Open in Binder]({binder_address(file)})"] if binder_address(file) else []
    ways += [f"[Source]({source_address(file)})"] if source_address(file) else []
    return (
        ":::{admonition} Run it yourself\n:class: tip run-it\n\n"
        "What you read here was stored by a run. In a clone of the course, `pip install -e .` and `course lab` open "
        f"JupyterLab, where `notebooks/{name}.ipynb` waits, not yet run: [how to start](../docs/handbook/desk.md).\n\n"
        + " · ".join(ways)
        + "\n:::"
    )


def map_of_lessons(file: str) -> str:
    """A table of the lessons with their minutes; what is learned is the README's."""
    lines = ["| | lesson | minutes | exercises | you learn |", "|--|---|--:|--:|---|"]
    for number, title, path, learned in ROW.findall((ROOT / "README.md").read_text()):
        link = _from(file, path)
        lesson = outlines().get(number)
        minutes = lesson.minutes if lesson else ""
        lines.append(f"| {number} | [{title}]({link}) | {minutes} | {_minutes(_of_lesson(number))} | {learned} |")
    total = sum(lesson.minutes for lesson in outlines().values())
    lines.append(f"| | **in all, hours** | **{total / 60:.0f}** | **{_minutes(_all()) / 60:.0f}** | |")
    return "\n".join(lines)


def map_of_exercises(file: str) -> str:
    """A table of the exercises with their kind, minutes and points."""
    lines = ["| | exercise | kind | minutes | points |", "|--|---|---|--:|--:|"]
    for exercise in _all():
        (notebook,) = (ROOT / "exercises").glob(f"{exercise.lesson}_*.ipynb")
        link = _from(file, f"exercises/{notebook.name}")
        row = (exercise.number, f"[{exercise.title}]({link})", exercise.level, exercise.minutes, exercise.points)
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def _all() -> list[Exercise]:
    return list(exercises().values())


def _of_lesson(number: str) -> list[Exercise]:
    return [exercise for exercise in _all() if exercise.lesson == number]


def _minutes(those: list[Exercise]) -> int:
    return sum(exercise.minutes for exercise in those)


def _from(file: str, path: str) -> str:
    return os.path.relpath(path, Path(file).parent)
