"""Marks for a learning platform: a CSV that Moodle or Canvas can import, with a column per lesson.

Both can import what they exported, so the safe way is to export the (empty) gradebook first and pass that file as
`students`: the table keeps its rows and names and adds the marks.
  Moodle: https://docs.moodle.org/405/en/Grade_import
  Canvas: https://teaching.resources.osu.edu/toolsets/carmencanvas/guides/calculating-final-grades/import-csv-file-carmen-grades
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.grading.gradebook import by_assignment
from course_lib.grading.records import Record
from course_lib.grading.summary import by_student, harmless
from course_lib.runtime.course_files import write_whole

# The columns that identify a student, in the order of an export. Two students may share a name.
IDENTITY = {
    "moodle": ("First name", "Last name", "Username", "ID number", "Institution", "Department", "Email address"),
    "canvas": ("Student", "ID", "SIS User ID", "SIS Login ID", "Section"),
}
SIS = ("SIS User ID", "SIS Login ID")
POINTS_POSSIBLE = "Points Possible"  # in Canvas, the row below the header starts with this
LARGEST = 20 << 20  # bytes of an export


class BadStudents(ValueError):
    """The file is not an exported gradebook; the message says why."""


@dataclass
class Gradebook:
    """An exported gradebook: its columns, and a row per student."""

    columns: list[str]
    rows: list[dict[str, str]] = field(default_factory=list)

    def row_of(self, student: str) -> dict[str, str] | None:
        """Return the row with this login, number or address, or else with this name; None unless exactly one matches.

        Students may choose their display name. Logins come first, so nobody loses a mark to someone who took their
        login as a name.
        """
        for texts in (_logins, _full_names):
            found = [row for row in self.rows if student.casefold() in texts(row)]
            if found:
                return found[0] if len(found) == 1 else None
        return None


def read_students(path: str, platform: str) -> Gradebook:
    """Read a gradebook that the platform exported to this file."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            text = file.read(LARGEST + 1)
        columns, *rows = csv.reader(io.StringIO(text), strict=True)
    except (OSError, ValueError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a CSV table in UTF-8"
        raise BadStudents(f"--students {path}: {why}; give the gradebook that {platform.title()} exported") from None
    columns = [column.strip() for column in columns]
    if not set(columns) & set(IDENTITY[platform]):
        known = ", ".join(IDENTITY[platform])
        raise BadStudents(f"--students {path}: it has none of {platform.title()}'s columns ({known}); export it as CSV")
    named = [dict(zip(columns, row, strict=False)) for row in rows]
    return Gradebook(columns, [row for row in named if any(row.values())])


def platform_table(records: list[Record], platform: str, students: Gradebook | None = None) -> tuple[str, list[str]]:
    """Return the CSV to import, and the students who had no row, or more than one, in the export."""
    identity = [name for name in IDENTITY[platform] if students is None or name in students.columns]
    lessons = by_assignment(records)
    headers = [_header(name, students) for name in lessons]
    rows, unknown = _rows(records, platform, students)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*identity, *headers])
    if platform == "canvas":
        most = [max(record.most for record in theirs) for theirs in lessons.values()]
        writer.writerow([f"    {POINTS_POSSIBLE}", *[""] * (len(identity) - 1), *most])
    for student, row in rows:
        marks = {
            name: record.points for name, theirs in lessons.items() for record in theirs if record.student == student
        }
        writer.writerow(
            [*(harmless(row.get(name, "")) for name in identity), *(marks.get(name, "") for name in lessons)]
        )
    return text.getvalue(), unknown


def write_platform_table(records: list[Record], platform: str, out: Path, students: Gradebook | None) -> str:
    """Write `moodle.csv` or `canvas.csv` to the results folder, and return a summary to print."""
    text, unknown = platform_table(records, platform, students)
    path = out / f"{platform}.csv"
    write_whole(path, text)
    told = f"{path}: ready for {platform.title()}"
    return f"{told}; without {', '.join(unknown)}: that name does not match exactly one row there" if unknown else told


def _rows(
    records: list[Record], platform: str, students: Gradebook | None
) -> tuple[list[tuple[str, dict[str, str]]], list[str]]:
    names = [student.name for student in by_student(records)]
    if students is None:
        return [(name, _from_name(name, platform)) for name in names], []
    found = [(name, students.row_of(name)) for name in names]
    return [(name, row) for name, row in found if row], [name for name, row in found if not row]


def _from_name(name: str, platform: str) -> dict[str, str]:
    """Return the identifying columns that we can infer from the name of a student's folder."""
    if platform == "canvas":
        return {"Student": name, "SIS Login ID": name}
    return {"Email address": name} if "@" in name else {"Username": name}


def _logins(row: dict[str, str]) -> set[str]:
    return _texts(row.get(name, "") for name in ("Username", "ID number", "Email address", "ID", *SIS))


def _full_names(row: dict[str, str]) -> set[str]:
    return _texts([f"{row.get('First name', '')} {row.get('Last name', '')}", row.get("Student", "")])


def _texts(texts: Iterable[str]) -> set[str]:
    return {text.strip().casefold() for text in texts if text.strip()}


def _header(lesson: str, students: Gradebook | None) -> str:
    """Return the lesson's column as the platform names it, with its id: `02_ddp (1234)`."""
    known = students.columns if students else []
    ours = (column for column in known if column.removeprefix("Assignment: ").split(" (")[0] == lesson)
    return harmless(next(ours, lesson))
