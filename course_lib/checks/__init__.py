"""Exercises put to the test on real ranks: `check`, with `hint` and `solution` beside it.

In the lessons, `predict` and `reveal`; in a class, `class_question`; and `progress` for all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from course_lib.checks import progress_file
from course_lib.checks.asking import class_question, predict, reveal
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
    "class_question",
    "exercises",
    "find",
    "hint",
    "predict",
    "predictions",
    "progress",
    "reveal",
    "solution",
]

SEED = 1  # of the inputs that a learner's answer is tried on; grading uses another


def check(number: str, answer: Any) -> Report:
    """Try an answer on real ranks, remember that, and return the report, which shows itself: it says what is wrong.

    Where nobody would show it, in a script, it is printed.
    """
    exercise = find(number)
    report = examine(exercise, answer, SEED)
    progress_file.record(number, report)
    tell_class(report)
    if in_notebook():
        show_after_the_cell(report)
    elif not hasattr(sys, "ps1"):  # which shows what a line returns
        print(report)
    return report


def check_notebook(path: str) -> bool:
    """Check every answer in a notebook of exercises; whether all have passed. Raises `BadNotebook` if it is none.

    A cell that raises takes along what it would have defined, and nothing else.
    """
    from course_lib.checks.notebooks import BadNotebook, read, run_cells

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
        raise BadNotebook(f"{path} has no exercises in it: give one of exercises/, under its own name")
    untried = [exercise for exercise in lesson if exercise not in ours] if problems else []
    for exercise in untried:
        print(f"{exercise.number} {exercise.title}: not checked, because no cell has defined {exercise.answer}")
    reports = [check(exercise.number, names[exercise.answer]) for exercise in ours]
    return all(report.passed for report in reports) and not untried


def hint(number: str) -> None:
    """Show one more hint each time."""
    show_hints(find(number))


def solution(number: str) -> None:
    """Show our answer and why it is one, to somebody who has tried."""
    show_solution(find(number))


def progress() -> None:
    """Show how far you are: lessons, predictions, exercises, and what comes next."""
    found = overview(exercises(), predictions())
    show(found.as_box(), str(found))


def examine(exercise: Exercise, answer: Any, seed: int) -> Report:
    """Put an answer to the test in this process's own ranks; after a hang, what is left is not tried."""
    cases = exercise.cases(seed)
    trial = Trial(exercise.drive, answer, [(case.ranks, case.inputs) for case in cases], exercise.timeout)
    return assess(exercise, cases, trial.outcome, again=trial.alone, after_a_hang=False)
