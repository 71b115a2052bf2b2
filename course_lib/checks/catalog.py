"""What the course has, by number: its lessons, with links that open one at a section, exercises and predictions.

The content lies in `course_lib.lessons`, a room above this one: it is found by its place, never imported by name.
"""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import attrgetter
from pathlib import Path
from urllib.parse import quote

from course_lib.checks.exercise import Exercise
from course_lib.checks.prediction import Prediction, read_predictions

CONTENT = Path(__file__).parents[1] / "lessons"


@dataclass(frozen=True)
class Lesson:
    """A lesson: its notebooks, of the text and of the exercises, have the same name."""

    name: str
    title: str

    @property
    def number(self) -> str:
        return self.name[:2]


LESSONS = {
    lesson.number: lesson
    for lesson in (
        Lesson("00_start_here", "Start here: ranks and what they say to each other"),
        Lesson("01_single_gpu", "One device: where time and memory go"),
        Lesson("02_ddp", "Data parallelism: many ranks, one model"),
        Lesson("03_padding_and_masking", "Padding and masking: sequences of different lengths"),
        Lesson("04_accumulation", "Accumulation: a large batch in small pieces"),
        Lesson("05_model_parallelism", "Model parallelism: the model does not fit"),
        Lesson("06_pipeline_parallelism", "Pipeline parallelism: every stage at work"),
        Lesson("07_hybrid_parallelism", "Hybrid parallelism: replicas, stages, shards, and a plan"),
        Lesson("08_when_ranks_hang", "When ranks hang"),
        Lesson("09_real_clusters", "Real clusters"),
        Lesson("10_other_frameworks", "Other frameworks: the same LSTM in TensorFlow and in JAX"),
        Lesson("11_capstone", "Capstone"),
    )
}


@cache
def exercises() -> dict[str, Exercise]:
    """All exercises of the course, by number: each is `EXERCISE` in a file of its own."""
    files = CONTENT.glob("lesson_*/[a-z]*.py")
    modules = [importlib.import_module(f"course_lib.lessons.{path.parent.name}.{path.stem}") for path in files]
    return {exercise.number: exercise for exercise in sorted((m.EXERCISE for m in modules), key=attrgetter("number"))}


def find(number: str) -> Exercise:
    """The exercise of that number."""
    try:
        return exercises()[number]
    except (KeyError, TypeError):
        known = ", ".join(exercises())
        raise ValueError(f"{number!r}: the exercises are numbered like 02.1: give one of {known}") from None


@cache
def predictions() -> dict[str, Prediction]:
    """All predictions of the course, by number."""
    files = sorted(CONTENT.glob("lesson_*/predictions.toml"))
    return {prediction.number: prediction for path in files for prediction in read_predictions(path)}


def find_prediction(number: str) -> Prediction:
    """The prediction of that number."""
    try:
        return predictions()[number]
    except (KeyError, TypeError):
        known = ", ".join(predictions())
        raise ValueError(f"{number!r}: the predictions are numbered like 06.1: give one of {known}") from None


def address(lesson: str, section: str = "", *, folder: str = "notebooks") -> str:
    """Where a notebook of this lesson is, seen from the one that is open, at that section; "" if it is not there."""
    known = LESSONS.get(lesson)
    for way in (f"../{folder}", folder):
        path = Path(way, f"{known.name}.ipynb") if known else Path()
        if path.is_file():
            return f"{way}/{path.name}{_fragment(path, section)}"
    return ""


def _fragment(path: Path, section: str) -> str:
    """What leads to the section. JupyterLab finds no heading that is not plain ASCII, but every cell by its id."""
    cell = _headings(path, path.stat().st_mtime_ns).get(section)
    return f"#cell-id={quote(cell)}" if cell else ""


@lru_cache
def _headings(path: Path, _: int) -> dict[str, str]:
    """The id of the cell that each heading is in; anew when the file has changed."""
    try:
        cells = json.loads(path.read_bytes())["cells"]
        texts = {str(cell["id"]): "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"}
    except (OSError, ValueError, TypeError, KeyError):  # a learner's file: it may be anything
        return {}
    return {heading: cell for cell, text in texts.items() for heading in re.findall(r"^#+ (.+?) *$", text, flags=re.M)}
