"""Write marks into nbgrader's gradebook."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import warnings
from pathlib import Path

from course_lib.checks.catalog import exercises
from course_lib.checks.notebooks import check_id
from course_lib.grading.records import Record
from course_lib.runtime.course_files import course_folder


class NoGradebook(ValueError):
    """nbgrader or the database is missing; the message says what to do."""


def check_gradebook(database: str) -> None:
    """Raise `NoGradebook` if nbgrader is missing or `database` is not a database URL, without opening it."""
    if importlib.util.find_spec("nbgrader") is None:
        raise NoGradebook("nbgrader is not installed: pip install -e '.[nbgrader]', or leave out --gradebook")
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(database)
        url.get_dialect().import_dbapi()
    except (ArgumentError, ImportError, ValueError) as error:
        raise NoGradebook(f"--gradebook {database}: {error}; give one like sqlite:///gradebook.db") from error
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").absolute().parent.is_dir():
        raise NoGradebook(f"--gradebook {database}: there is no such folder; make it first")


def write_gradebook(records: list[Record], database: str) -> None:
    """Write every mark to the database, for example `sqlite:///gradebook.db`. Each lesson is an assignment."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        _write_gradebook(records, database)
    except SQLAlchemyError as error:
        reason = str(error).splitlines()[0]
        raise NoGradebook(
            f"--gradebook {database} cannot be written ({reason}); the other results are complete, and the "
            "same command with a different database writes only the gradebook"
        ) from error


def by_assignment(records: list[Record]) -> dict[str, list[Record]]:
    """Group records by the notebook's name in the course, even if a browser renamed the file to `02_ddp (1)`."""
    own = {path.stem[:2]: path.stem for path in sorted((course_folder() / "exercises").glob("*.ipynb"))}
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (len(record.notebook), record.notebook)):
        if record.marks:
            found.setdefault(own.setdefault(record.notebook[:2], record.notebook), []).append(record)
    return dict(sorted(found.items()))


def let_nbgrader_find_its_programs() -> None:
    """Put our scripts on PATH: nbgrader calls `alembic` by name, and the environment may not be activated."""
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


def _write_gradebook(records: list[Record], database: str) -> None:
    from nbgrader.api import Gradebook

    let_nbgrader_find_its_programs()
    with warnings.catch_warnings(), Gradebook(database) as book:
        warnings.simplefilter("ignore")  # nbgrader's database calls warn
        for name, ours in by_assignment(records).items():
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
        grade.auto_score, grade.needs_manual_grade = float(mark.points), bool(mark.not_measured)
    book.db.commit()
