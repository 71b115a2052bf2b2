"""Marks into nbgrader's gradebook, for those who keep their class there."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import warnings

from course_lib.checks import exercises
from course_lib.checks.notebooks import check_id
from course_lib.grading.records import Record


class NoGradebook(RuntimeError):
    """nbgrader is not installed; the sentence says how to install it."""


def check_gradebook() -> None:
    """Raise `NoGradebook` where there is no nbgrader."""
    if importlib.util.find_spec("nbgrader") is None:
        raise NoGradebook("nbgrader is not installed: pip install -e '.[nbgrader]', or leave out --gradebook")


def write_gradebook(records: list[Record], database: str) -> None:
    """Put every mark into the database, for example `sqlite:///gradebook.db`; an assignment is a lesson."""
    from nbgrader.api import Gradebook

    # nbgrader calls `alembic` by its name, and an environment may be used without being activated.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    with warnings.catch_warnings(), Gradebook(database) as book:
        warnings.simplefilter("ignore")  # nbgrader's own use of its database
        for name in sorted({record.notebook for record in records}):
            ours = [record for record in records if record.notebook == name]
            _add_assignment(book, name, ours[0])
            for record in ours:
                _add_marks(book, name, record)


def _add_assignment(book, name: str, record: Record) -> None:
    book.update_or_create_assignment(name)
    book.update_or_create_notebook(name, name)
    for mark in record.marks:
        most = exercises()[mark.number].points
        book.update_or_create_grade_cell(check_id(mark.number), name, name, max_score=most, cell_type="code")


def _add_marks(book, name: str, record: Record) -> None:
    book.update_or_create_student(record.student)
    book.update_or_create_submission(name, record.student)
    for mark in record.marks:
        grade = book.find_grade(check_id(mark.number), name, name, record.student)
        grade.auto_score, grade.needs_manual_grade = float(mark.points), False
    book.db.commit()
