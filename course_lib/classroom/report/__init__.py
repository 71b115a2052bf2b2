"""`course class report`: a page and two tables about a class, built from its record."""

from __future__ import annotations

from pathlib import Path

from course_lib.classroom.report.history import read_history
from course_lib.classroom.report.page import report_page
from course_lib.classroom.report.tables import learners_table, questions_table
from course_lib.runtime.course_files import write_whole


def write_report(record: Path, out: Path) -> None:
    """Write `index.html`, `learners.csv` and `questions.csv` to `out`. Raises `BadRecord` for any other file."""
    history = read_history(record)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "index.html", report_page(history))
    write_whole(out / "learners.csv", learners_table(history))
    write_whole(out / "questions.csv", questions_table(history))
