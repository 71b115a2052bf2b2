"""Exercises put to the test on real ranks: `check`, and `hint` and `solution` beside it."""

from __future__ import annotations

import importlib
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from course_lib.checks import progress
from course_lib.checks.exercise import Exercise
from course_lib.checks.inside.observe import Trial
from course_lib.checks.judging import Report, assess, wrong_answers

__all__ = ["check", "exercises", "find", "hint", "solution"]

FILES = sorted(Path(__file__).parent.glob("lesson_*/[a-z]*.py"))  # one for each exercise
SEED = 1  # of the inputs that a learner's answer is tried on; grading uses another
ASK = "the exercises are numbered like 02.1: give one of "


def check(number: str, answer: Any) -> float:
    """Try an answer on real ranks, say what is wrong with it, remember that, and return the points it earns."""
    exercise = find(number)
    report = examine(exercise, answer, SEED)
    progress.record(number, report)
    print(report)
    return float(report.points)


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
    earned = [check(exercise.number, names[exercise.answer]) for exercise in ours]
    return sum(earned) == sum(exercise.points for exercise in ours) and not untried


def hint(number: str) -> None:
    """Print one more hint each time."""
    exercise = find(number)
    taken = progress.take_hint(number, len(exercise.hints))
    for index, text in enumerate(exercise.hints[:taken]):
        print(f"{index + 1}. {text}")
    if taken == len(exercise.hints):
        print(f"That was the last hint. After a try of your own, solution({number!r}) shows ours.")


def solution(number: str) -> None:
    """Print our answer and why it is one, to somebody who has tried."""
    from course_lib.checks.notebooks import answer_cell

    exercise = find(number)
    if not progress.tries(number):
        print(f"Try it first: write {exercise.answer}, and run check({number!r}, {exercise.answer}).")
    else:
        print(answer_cell(exercise))


def examine(exercise: Exercise, answer: Any, seed: int) -> Report:
    """Put an answer to the test in this process's own ranks; after a hang, what is left is not tried."""
    cases = exercise.cases(seed)
    trial = Trial(exercise.drive, answer, [(case.ranks, case.inputs) for case in cases], exercise.timeout)
    return assess(exercise, cases, trial.outcome, wrong_answers(exercise), again=trial.alone, after_a_hang=False)


@cache
def exercises() -> dict[str, Exercise]:
    """All exercises of the course, by number."""
    modules = [importlib.import_module(f"course_lib.checks.{path.parent.name}.{path.stem}") for path in FILES]
    return {exercise.number: exercise for exercise in sorted((m.EXERCISE for m in modules), key=attrgetter("number"))}


def find(number: str) -> Exercise:
    """The exercise of that number."""
    try:
        return exercises()[number]
    except (KeyError, TypeError):
        raise ValueError(f"{number!r}: {ASK}{', '.join(exercises())}") from None
