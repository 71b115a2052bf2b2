"""What the notebooks call: `check`, `hint` and `solution` in exercises, `predict` and `reveal` in lessons, `progress`.

`check` runs an answer on real ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from course_lib.checks import progress_file
from course_lib.checks.asking import predict, reveal
from course_lib.checks.catalog import exercises, find, predictions
from course_lib.checks.exercise import Exercise
from course_lib.checks.help import show_after_the_cell, show_hints, show_solution
from course_lib.checks.inside.observe import Trial
from course_lib.checks.judging import assess
from course_lib.checks.overview import overview
from course_lib.checks.report import Report
from course_lib.checks.showing import in_notebook, show
from course_lib.checks.telling import tell_class

__all__ = [
    "check",
    "exercises",
    "find",
    "hint",
    "predict",
    "predictions",
    "progress",
    "reveal",
    "solution",
]

SEED = 1  # for the inputs of a learner's own checks; grading uses a different seed


def check(number: str, answer: Any) -> Report:
    """Run an answer on real ranks, record the attempt, and return a report that says what is wrong.

    A notebook or an interactive session displays the report; in a script, this function prints it.
    """
    exercise = find(number)
    report = examine(exercise, answer, SEED)
    progress_file.record(number, report)
    tell_class(report)
    if in_notebook():
        show_after_the_cell(report)
    elif not hasattr(sys, "ps1"):  # an interactive session displays it anyway
        print(report)
    return report


def check_notebook(path: str) -> bool:
    """Check every answer in an exercise notebook and return whether all passed.

    If a cell raises, only the names it defines are missing. Raises `BadNotebook` if it is not an exercise notebook.
    """
    from course_lib.checks.notebooks import run_cells
    from course_lib.runtime.course_files import BadNotebook, read

    if not Path(path).is_file():
        raise BadNotebook(f"{path} is not a notebook: there is no such file")
    try:
        notebook = read(Path(path))
    except BadNotebook as error:
        raise BadNotebook(f"{path}: {error}") from error
    names, problems = run_cells(notebook)
    print("".join(f"{problem}\n" for problem in problems), end="")
    lesson = [exercise for exercise in exercises().values() if exercise.lesson == Path(path).stem[:2]]
    ours = [exercise for exercise in lesson if exercise.answer in names]
    if not ours and not (lesson and problems):
        raise BadNotebook(f"{path} has no exercises in it: give a notebook from exercises/, with its original name")
    untried = [exercise for exercise in lesson if exercise not in ours] if problems else []
    for exercise in untried:
        print(f"{exercise.number} {exercise.title}: not checked, because no cell has defined {exercise.answer}")
    reports = [check(exercise.number, names[exercise.answer]) for exercise in ours]
    return all(report.passed for report in reports) and not untried


def hint(number: str) -> None:
    """Show the hints taken so far, plus one more with every call."""
    show_hints(find(number))


def solution(number: str) -> None:
    """Show our answer, with its explanation, once the learner has tried the exercise."""
    show_solution(find(number))


def progress() -> None:
    """Show your progress: lessons, predictions, exercises, and what comes next."""
    found = overview(exercises(), predictions())
    show(found.as_box(), str(found))


def examine(exercise: Exercise, answer: Any, seed: int) -> Report:
    """Run an answer on ranks launched from this process and return its report.

    After a hang, the other parts are skipped.
    """
    cases = exercise.cases(seed)
    trial = Trial(exercise.drive, answer, [(case.ranks, case.inputs) for case in cases], exercise.timeout)
    return assess(exercise, cases, trial.outcome, again=trial.alone, after_a_hang=False)
