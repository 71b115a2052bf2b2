"""Run a solution notebook and create the exercise notebook from it by removing the answers."""

from __future__ import annotations

import json
from pathlib import Path

from course_lib.authoring.refresh import refresh
from course_lib.checks.notebooks import BEGIN, END, without_answers
from course_lib.course_files import BadNotebook, is_answer, read, source


def make_exercise(solution: Path) -> Path:
    """Run a solution, write the exercise without the answers, run that as well, and return the path of the exercise.

    The exercise has the same name as the solution and goes into the folder `exercises` next to the solution's folder.
    Raises `BadNotebook` if the notebook contains no answers to remove, and `NotStored` if one of its cells fails.
    """
    if not any(BEGIN in source(cell) for cell in read(solution)["cells"] if is_answer(cell)):
        raise BadNotebook(f"it is not a solution: none of its answer cells contains {BEGIN} and {END}")
    refresh(solution, anyway=True)
    exercise = solution.resolve().parent.parent / "exercises" / solution.name
    exercise.parent.mkdir(exist_ok=True)
    text = json.dumps(without_answers(read(solution)), indent=1, ensure_ascii=False)
    exercise.write_text(text + "\n", encoding="utf-8")
    refresh(exercise, anyway=True)
    return exercise
