"""What of the course a class can be asked, tried on and seen at: predictions, exercises, and the lessons' headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from course_lib.checks import exercises, predictions
from course_lib.checks.catalog import LESSONS
from course_lib.checks.exercise import Exercise
from course_lib.checks.prediction import Prediction
from course_lib.course_files import BadNotebook, course_folder, read, source


@dataclass(frozen=True)
class Content:
    """The questions and exercises of the course by number, and the headings of each lesson in order."""

    questions: dict[str, Prediction]
    exercises: dict[str, Exercise]
    sections: dict[str, tuple[str, ...]]

    def section(self, lesson: str, heading: str) -> str:
        """The heading as the lesson has it; "" if it has none of the kind."""
        plain = plain_heading(heading)
        return plain if plain in self.sections.get(lesson, ()) else ""


@cache
def content() -> Content:
    """Of the course that is installed here."""
    return Content(predictions(), exercises(), {number: _headings(lesson.name) for number, lesson in LESSONS.items()})


def plain_heading(text: str) -> str:
    """A heading as a reader sees it: without the marks of code and emphasis."""
    return " ".join(re.sub(r"[`*]", "", text).split())


def _headings(name: str) -> tuple[str, ...]:
    """The sections of a lesson, then those of its exercises."""
    found: dict[str, None] = {}
    for folder in ("notebooks", "exercises"):
        try:
            cells = read(course_folder() / folder / f"{name}.ipynb")["cells"]
        except BadNotebook:  # the capstone has exercises alone
            continue
        for cell in cells:
            if cell.get("cell_type") == "markdown":
                found.update(dict.fromkeys(map(plain_heading, re.findall(r"^## (.+?) *$", source(cell), flags=re.M))))
    return tuple(found)
