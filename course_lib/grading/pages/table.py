"""The marks of a class as CSV, for a spreadsheet."""

from __future__ import annotations

import csv
import io

from course_lib.checks.markup import UNPRINTABLE
from course_lib.grading.pages.summary import by_student, exercises_of, points_in_all
from course_lib.grading.records import Record

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001 - a spreadsheet may take the wide ones for them


def table(records: list[Record]) -> str:
    """A row for each student, a column for each exercise; what a clock decided, and what was wrong as a whole."""
    numbers = exercises_of(records)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["student", *numbers, "total", "of", "flagged", "remarks"])
    for student in by_student(records):
        marks = student.marks
        earned = [marks[number].points if number in marks else "" for number in numbers]
        flags = "; ".join(f"{flag.where}: {flag.what}" for flag in student.flags)
        troubled = [record for record in student.records if record.problem]
        problems = " ".join(f"{record.notebook}: {record.problem}".removeprefix(": ") for record in troubled)
        of = points_in_all(numbers)
        writer.writerow([harmless(student.name), *earned, student.points, of, harmless(flags), harmless(problems)])
    return text.getvalue()


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula, whatever stands before the sign that begins one."""
    text = UNPRINTABLE.sub("\ufffd", text)
    begins = text.lstrip(" \t\r\n\u00a0\u200b\ufeff\ufffd")
    return f"'{text}" if begins.startswith(FORMULA) or text[:1] in ("\t", "\r", "\n") else text
