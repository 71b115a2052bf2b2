"""The parts of the course that a class refers to: predictions, exercises and section headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from course_lib.checks.catalog import LESSONS, exercises, predictions
from course_lib.checks.exercise import Exercise
from course_lib.checks.prediction import Prediction
from course_lib.runtime.course_files import BadNotebook, course_folder, read, source


@dataclass(frozen=True)
class Content:
    """The course's questions and exercises by number, and each lesson's headings in order."""

    questions: dict[str, Prediction]
    exercises: dict[str, Exercise]
    sections: dict[str, tuple[str, ...]]

    def section(self, lesson: str, heading: str) -> str:
        """Return the heading as plain text, or "" if the lesson does not have it."""
        plain = plain_heading(heading)
        return plain if plain in self.sections.get(lesson, ()) else ""


@cache
def content() -> Content:
    """Return the content of the installed course."""
    return Content(predictions(), exercises(), {number: _headings(lesson.name) for number, lesson in LESSONS.items()})


def plain_heading(text: str) -> str:
    """Strip the Markdown marks of code and emphasis from a heading."""
    return " ".join(re.sub(r"[`*]", "", text).split())


def _headings(name: str) -> tuple[str, ...]:
    """Return the headings of a lesson, then those of its exercises."""
    found: dict[str, None] = {}
    for folder in ("notebooks", "exercises"):
        try:
            cells = read(course_folder() / folder / f"{name}.ipynb")["cells"]
        except BadNotebook:  # the capstone has only exercises
            continue
        for cell in cells:
            if cell.get("cell_type") == "markdown":
                found.update(dict.fromkeys(map(plain_heading, re.findall(r"^## (.+?) *$", source(cell), flags=re.M))))
    return tuple(found)
