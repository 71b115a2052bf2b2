"""The lessons, exercises and predictions of the course by number, and links that open a lesson at a section.

The content is in `course_lib.lessons`, a layer above this one, so it's found by its path and never imported by name.
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
from course_lib.checks.texts import CONTENT


@dataclass(frozen=True)
class Lesson:
    """A lesson. Its notebook in notebooks/ and its notebook in exercises/ share a name."""

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
        Lesson("12_transformer", "From the LSTM to a transformer"),
    )
}


@cache
def exercises() -> dict[str, Exercise]:
    """Return all exercises of the course by number. Each file in a lesson's package defines one `EXERCISE`."""
    files = CONTENT.glob("lesson_*/[a-z]*.py")
    modules = [importlib.import_module(f"course_lib.lessons.{path.parent.name}.{path.stem}") for path in files]
    return {exercise.number: exercise for exercise in sorted((m.EXERCISE for m in modules), key=attrgetter("number"))}


def find(number: str) -> Exercise:
    """Return an exercise by number. Raises `ValueError`, which lists the known numbers."""
    try:
        return exercises()[number]
    except (KeyError, TypeError):
        known = ", ".join(exercises())
        raise ValueError(f"{number!r}: the exercises are numbered like 02.1: give one of {known}") from None


@cache
def predictions() -> dict[str, Prediction]:
    """Return all predictions of the course by number."""
    files = sorted(CONTENT.glob("lesson_*/predictions.toml"))
    return {prediction.number: prediction for path in files for prediction in read_predictions(path)}


def find_prediction(number: str) -> Prediction:
    """Return a prediction by number. Raises `ValueError`, which lists the known numbers."""
    try:
        return predictions()[number]
    except (KeyError, TypeError):
        known = ", ".join(predictions())
        raise ValueError(f"{number!r}: the predictions are numbered like 06.1: give one of {known}") from None


def address(lesson: str, section: str = "", *, folder: str = "notebooks") -> str:
    """Return the link from the open notebook to a section of a lesson's notebook, or "" if the notebook is missing."""
    known = LESSONS.get(lesson)
    for way in (f"../{folder}", folder):
        path = Path(way, f"{known.name}.ipynb") if known else Path()
        if path.is_file():
            return f"{way}/{path.name}{_fragment(path, section)}"
    return ""


def _fragment(path: Path, section: str) -> str:
    """Return the URL fragment of a section. It's a cell id because JupyterLab only finds headings in plain ASCII."""
    cell = _headings(path, path.stat().st_mtime_ns).get(section)
    return f"#cell-id={quote(cell)}" if cell else ""


@lru_cache
def _headings(path: Path, _: int) -> dict[str, str]:
    """Return the cell id of each heading. The mtime is an argument so that the cache misses when the file changes."""
    try:
        cells = json.loads(path.read_bytes())["cells"]
        texts = {str(cell["id"]): "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"}
    except (OSError, ValueError, TypeError, KeyError):  # learners can edit the file
        return {}
    return {heading: cell for cell, text in texts.items() for heading in re.findall(r"^#+ (.+?) *$", text, flags=re.M)}
