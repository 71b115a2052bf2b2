"""What comes out of grading: a page for each student, and a table of the class."""

from __future__ import annotations

import csv
import html
import io
import re
from pathlib import Path

from course_lib.checks import exercises
from course_lib.grading.names import file_name
from course_lib.grading.records import Mark, Record

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1rem; margin-bottom: .2rem; } .points { float: right; font-weight: normal; }
ul { list-style: none; padding: 0; margin: 0; } li { padding: .15rem 0 .15rem 1.6rem; text-indent: -1.6rem; }
.right::before { content: "✓"; color: #0072b2; display: inline-block; width: 1.6rem; text-indent: 0; }
.wrong::before { content: "✗"; color: #d55e00; display: inline-block; width: 1.6rem; text-indent: 0; }
.problem { background: #fdf0e8; padding: .5rem 1rem; } .read { color: #555; margin: .2rem 0 0 1.6rem; }
"""


def write_pages(records: list[Record], out: Path) -> None:
    """`pages/STUDENT.html` for each student, and `grades.csv` for the class."""
    folder = out / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    for student in {record.student for record in records}:
        theirs = [record for record in records if record.student == student]
        _write(folder / f"{file_name(student)}.html", page(student, theirs))
    _write(out / "grades.csv", table(records))


def page(student: str, records: list[Record]) -> str:
    """One student's page: what was right, which mistake was made, and what to read again."""
    points, most = sum(r.points for r in records), sum(r.most for r in records)
    parts = [f"<h1>{html.escape(student)}: {points} of {most} points</h1>"]
    for record in records:
        parts.append(f"<h2>{html.escape(record.notebook)} {_points(record.points, record.most)}</h2>")
        if record.problem:
            parts.append(f'<p class="problem">{html.escape(record.problem)}</p>')
        parts += [_exercise(mark) for mark in record.marks]
    head = f'<meta charset="utf-8"><title>{html.escape(student)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def table(records: list[Record]) -> str:
    """A row for each student, a column for each exercise, as CSV."""
    numbers = sorted({mark.number for record in records for mark in record.marks})
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["student", *numbers, "total", "of", "remarks"])
    for student in sorted({record.student for record in records}):
        theirs = [record for record in records if record.student == student]
        points = {mark.number: mark.points for record in theirs for mark in record.marks}
        problems = " ".join(
            f"{record.notebook}: {record.problem}".removeprefix(": ") for record in theirs if record.problem
        )
        total, most = sum(points.values()), sum(exercises()[number].points for number in numbers)
        writer.writerow([_cell(student), *(points.get(n, "") for n in numbers), total, most, _cell(problems)])
    return text.getvalue()


def _exercise(mark: Mark) -> str:
    exercise = exercises()[mark.number]
    title = f"<h3>{exercise.number} {exercise.title} {_points(mark.points, exercise.points)}</h3>"
    if not mark.attempted:
        return f"{title}\n<p>Not attempted.</p>"
    items = []
    for part, earned in mark.parts.items():
        right = earned == exercise.parts[part]
        told = f": {_remark(mark, part)}" if part in mark.remarks else ""
        items.append(f'<li class="{"right" if right else "wrong"}">{html.escape(part)}{told}</li>')
    again = "" if mark.points == exercise.points else f'<p class="read">Read again: {exercise.where_to_read}.</p>'
    return f"{title}\n<ul>{''.join(items)}</ul>{again}"


def _remark(mark: Mark, part: str) -> str:
    """What the student is told of a part, with code as code; what was said before is not said again."""
    before = list(mark.remarks.values())[: list(mark.remarks).index(part)]
    text = "the same." if mark.remarks[part] in before else mark.remarks[part]
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _points(points: int, most: int) -> str:
    return f'<span class="points">{points} of {most}</span>'


def _cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip()[:1] in tuple("=+-@") else text


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_bytes(text.encode(errors="replace"))
    aside.replace(path)
