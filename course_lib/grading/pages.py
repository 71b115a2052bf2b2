"""The output of grading: a page per student, and a page and a table for the class.

The pages are Jinja2 templates in `templates/`. Every value is escaped, so text from a student stays text, and no page
can access the network.
"""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from course_lib.checks import showing
from course_lib.checks.catalog import exercises
from course_lib.grading import summary
from course_lib.grading.records import Mark, Record
from course_lib.grading.submissions import file_name
from course_lib.grading.summary import Bar, Student, by_student, exercises_of, mean, points_in_all, table
from course_lib.runtime.course_files import write_whole

TEMPLATES = Path(__file__).with_name("templates")

# Okabe and Ito's colors, darker where text needs it.
LIGHT = {
    "paper": "#ffffff",
    "ink": "#222222",
    "quiet": "#555555",
    "line": "#c4c4c4",
    "right": "#0072b2",
    "wrong": "#a84a00",
    "notice": "#fdf0e8",
}
DARK = {
    "paper": "#16181c",
    "ink": "#e8e8e8",
    "quiet": "#b4b4b4",
    "line": "#4a4d52",
    "right": "#56b4e9",
    "wrong": "#f0a868",
    "notice": "#33261b",
}


def write_pages(records: list[Record], out: Path, make: Callable[[str, list[Record]], str] | None = None) -> None:
    """Write a page per student, rendered by `make`, to `pages/`, and `index.html` and `grades.csv` for the class."""
    folder = out / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    for student in by_student(records):
        write_whole(folder / page_name(student.name), (make or page)(student.name, student.records))
    write_whole(out / "index.html", class_page(records))
    write_whole(out / "grades.csv", table(records))


def page(student: str, records: list[Record]) -> str:
    """Return one student's page as HTML."""
    earned, most = sum(record.points for record in records), sum(record.most for record in records)
    total = f"{earned} of {most} points" if most else "no points"
    title = f"{student}: {total}"
    return render("student.html", title=title, skip_to="To the marks", student=student, total=total, records=records)


def class_page(records: list[Record]) -> str:
    """Return the class page as HTML, with a link to each student's page."""
    students, numbers = by_student(records), exercises_of(records)
    return render(
        "class.html",
        title="Grades of the class",
        skip_to="To the results",
        wide=True,
        in_short=_in_short(students, numbers),
        students=students,
        numbers=numbers,
        most=points_in_all(numbers),
        means=_means(students, numbers),
        mistakes=summary.mistakes(students),
        untried=[
            each for each in students if each.handed_in and not each.problems and not any(map(each.tried, each.marks))
        ],
    )


def render(
    template: str, *, title: str, skip_to: str, wide: bool = False, folder: Path = TEMPLATES, **values: Any
) -> str:
    """Render a template that extends `document.html`. With `wide`, its tables are sortable."""
    made = environment(folder).get_template(template)
    return made.render(title=title, skip_to=skip_to, wide=wide, exercises=exercises(), **values) + "\n"


@cache
def environment(folder: Path) -> Environment:
    """Return the Jinja2 environment of a folder's templates plus the shared ones."""
    made = Environment(
        autoescape=True,
        finalize=_printable,
        loader=FileSystemLoader([folder, TEMPLATES]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(LIGHT=LIGHT, DARK=DARK)
    filters = (anchor, bars_in_words, count_of, in_a_list, page_name, remark, sha256, shortened)
    counts = (summary.lost_parts, summary.marks_of, summary.points_distribution, summary.right_in)
    made.filters.update({each.__name__: each for each in (*filters, *counts, summary.totals_distribution)})
    made.filters.update(with_code=lambda words: Markup(showing.with_code(words)))
    made.filters.update(marked=lambda words: Markup(showing.marked(words)))
    return made


def _printable(value: Any) -> Any:
    """Replace unprintable characters in a value. Jinja2 escapes it afterwards."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return showing.UNPRINTABLE.sub("\ufffd", value)


def count_of(number: int, what: str) -> str:
    """Return a count with its noun: "1 student", "2 students"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def shortened(words: str, longest: int) -> str:
    """Cut text to at most `longest` characters."""
    return words if len(words) <= longest else f"{words[:longest]}…"


def in_a_list(words: str) -> Markup:
    """Shorten a sentence to fit in a list; the student's page has all of it."""
    return Markup(showing.with_code(shortened(words, 300)))


def page_name(student: str) -> str:
    """Return the file name of a student's page."""
    return f"{file_name(student)}.html"


def anchor(exercise: str) -> str:
    """Return the HTML id of an exercise's section."""
    return f"exercise-{exercise.replace('.', '-')}"


def sha256(text: str) -> str:
    """Return the digest that the page's Content-Security-Policy lists for its inline style or script."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def bars_in_words(shown: list[Bar]) -> str:
    """Describe a bar chart in words, for screen readers."""
    return "; ".join(f"{bar.told}: {count_of(bar.count, 'student')}" for bar in shown if bar.count) or "nobody"


def remark(mark: Mark, part: str) -> str:
    """Return the remark on a part, or "the same." if an earlier part has the same remark."""
    before = list(mark.remarks.values())[: list(mark.remarks).index(part)]
    return "the same." if mark.remarks[part] in before else mark.remarks[part]


def _in_short(students: list[Student], numbers: list[str]) -> str:
    handed = [student.points for student in students if student.handed_in]
    most = count_of(points_in_all(numbers), "point")
    told = f"{count_of(len(students), 'student')}, {count_of(len(numbers), 'exercise')}, {most} to earn."
    if not handed:
        return f"{told} Nobody has handed in anything that could be graded."
    spread = f"median {statistics.median(handed):g}, from {min(handed)} to {max(handed)}"
    return f"{told} Of those who handed in: mean {mean(handed):.1f}, {spread}."


def _means(students: list[Student], numbers: list[str]) -> list[str]:
    """Return the table's last row: the mean total of all submissions, and of each exercise's attempts."""
    tried = [[mark.points for mark in summary.marks_of(students, number)] for number in numbers]
    totals = [student.points for student in students if student.handed_in]
    means = [f"{mean(earned):.1f}" if earned else "" for earned in (totals, *tried)]
    return [means[0], "", *means[1:], ""]
