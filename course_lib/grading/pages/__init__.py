"""What comes out of grading: a page for each student, a page and a table of the class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from course_lib.grading.pages.class_page import class_page
from course_lib.grading.pages.markup import page_name
from course_lib.grading.pages.student_page import page
from course_lib.grading.pages.summary import by_student
from course_lib.grading.pages.table import table
from course_lib.grading.records import Record


def write_pages(records: list[Record], out: Path, make: Callable[[str, list[Record]], str] = page) -> None:
    """`pages/STUDENT.html` for each student, as `make` has it; `index.html` and `grades.csv` for the class."""
    folder = out / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    for student in by_student(records):
        write_whole(folder / page_name(student.name), make(student.name, student.records))
    write_whole(out / "index.html", class_page(records))
    write_whole(out / "grades.csv", table(records))


def write_whole(path: Path, text: str) -> None:
    """Written aside and renamed: a page is whole, or the one from before."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_bytes(text.encode())
    aside.replace(path)
