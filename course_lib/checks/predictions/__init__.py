"""What a learner predicts before a run: `predict` asks, `reveal` is told what came out. One file for each lesson."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from course_lib.checks.predictions.prediction import Prediction

FILES = sorted(Path(__file__).parent.glob("lesson_*.py"))


@cache
def predictions() -> dict[str, Prediction]:
    """All predictions of the course, by number."""
    modules = [importlib.import_module(f"{__name__}.{path.stem}") for path in FILES]
    return {prediction.number: prediction for module in modules for prediction in module.PREDICTIONS}


def find_prediction(number: str) -> Prediction:
    """The prediction of that number."""
    try:
        return predictions()[number]
    except (KeyError, TypeError):
        known = ", ".join(predictions())
        raise ValueError(f"{number!r}: the predictions are numbered like 06.1: give one of {known}") from None
