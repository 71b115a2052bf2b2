"""Aggregate the marks of a class by student, by exercise and by mistake, and as CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cached_property

from course_lib.checks.catalog import exercises
from course_lib.checks.showing import UNPRINTABLE
from course_lib.grading.records import Mark, Record

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001 - spreadsheets may treat full-width signs the same
LEFT_OUT = "-"  # shown instead of points for an exercise not attempted


@dataclass(frozen=True)
class Flag:
    """A result to check: a time limit affected it, or its cost could not be measured."""

    where: str  # notebook or exercise
    what: str  # "the whole notebook", or the parts

    @property
    def in_words(self) -> str:
        return f"{self.where} ({self.what})"


@dataclass(frozen=True)
class Student:
    """One student and the records of all notebooks they handed in."""

    name: str
    records: list[Record]

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """The marks by exercise number."""
        return {mark.number: mark for record in self.records for mark in record.marks}

    @cached_property
    def points(self) -> int:
        return sum(mark.points for mark in self.marks.values())

    @property
    def handed_in(self) -> bool:
        """Whether there was a notebook of exercises, even a broken one."""
        return bool(self.marks)

    @property
    def flags(self) -> list[Flag]:
        return [flag for record in self.records for flag in flags_of(record)]

    @property
    def problems(self) -> list[str]:
        """Problems with whole notebooks."""
        return [record.problem for record in self.records if record.problem]

    def tried(self, number: str) -> bool:
        return number in self.marks and self.marks[number].attempted


@dataclass(frozen=True)
class Mistake:
    """The students who made a known mistake, or, without a cause, those who lost points for other reasons."""

    number: str
    cause: str
    students: dict[str, str]  # name -> remark


@dataclass(frozen=True)
class Bar:
    """One bar of a chart: `count` students are in the group that `label` names; `told` is the label in words."""

    label: str
    told: str
    count: int


def by_student(records: list[Record]) -> list[Student]:
    """Group records by student, sorted by name."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.student, []).append(record)
    return [Student(name, found[name]) for name in sorted(found, key=lambda name: (name.casefold(), name))]


def exercises_of(records: list[Record]) -> list[str]:
    """Return the numbers of all exercises that have a mark."""
    return sorted({mark.number for record in records for mark in record.marks})


def points_in_all(numbers: list[str]) -> int:
    return sum(exercises()[number].points for number in numbers)


def flags_of(record: Record) -> list[Flag]:
    """Return everything in a notebook that a time limit affected or that could not be measured."""
    whole = [Flag(record.notebook, "the whole notebook")] if record.stopped_by_clock else []
    late = [Flag(mark.number, ", ".join(mark.by_clock)) for mark in record.marks if mark.by_clock]
    blind = [Flag(mark.number, f"not measured: {', '.join(mark.not_measured)}") for mark in record.marks]
    return whole + late + [flag for flag, mark in zip(blind, record.marks, strict=True) if mark.not_measured]


def lost_parts(mark: Mark) -> list[str]:
    """Return the parts that did not earn all their points."""
    most = exercises()[mark.number].parts
    return [part for part, earned in mark.parts.items() if earned < most.get(part, earned)]


def marks_of(students: list[Student], number: str) -> list[Mark]:
    """Return the marks of the students who attempted an exercise."""
    return [student.marks[number] for student in students if student.tried(number)]


def right_in(marks: list[Mark], part: str) -> int:
    """Return how many of these marks earned all points of a part."""
    return sum(part not in lost_parts(mark) for mark in marks)


def mistakes(students: list[Student]) -> list[Mistake]:
    """Return each mistake once, most frequent first, unnamed ones last. A student counts once per mistake."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for student in students:
        for mark in student.marks.values():
            lost = [
                part for part in lost_parts(mark) if mark.attempted and part not in (*mark.by_clock, *mark.not_measured)
            ]
            for part in lost:
                who = found.setdefault((mark.number, mark.causes.get(part, "")), {})
                who.setdefault(student.name, mark.remarks.get(part, ""))
    made = [Mistake(number, cause, who) for (number, cause), who in found.items()]
    return sorted(made, key=lambda each: (not each.cause, -len(each.students), each.number, each.cause))


def points_distribution(students: list[Student], number: str, most_bars: int = 11) -> list[Bar]:
    """Return the histogram of an exercise's points. The first bar counts students who did not attempt it."""
    most = exercises()[number].points
    earned = [mark.points for mark in marks_of(students, number)]
    step = -(-(most + 1) // most_bars)  # rounded up
    bars = [Bar(LEFT_OUT, "not tried", len(students) - len(earned))]
    for low in range(0, most + 1, step):
        high = min(low + step - 1, most)
        count = sum(low <= points <= high for points in earned)
        label = f"{low}" if low == high else f"{low}-{high}"
        bars.append(Bar(label, f"{label} {'point' if label == '1' else 'points'}", count))
    return bars


def totals_distribution(students: list[Student], most: int) -> list[Bar]:
    """Return the histogram of totals in tenths of `most`. The first bar counts students without a notebook."""
    shares = [10 * student.points // most for student in students if student.handed_in] if most else []
    bars = [Bar(LEFT_OUT, "no notebook", sum(not student.handed_in for student in students))]
    for tenth in range(10):
        count = sum(tenth == min(share, 9) for share in shares)
        low, high = 10 * tenth, 100 if tenth == 9 else 10 * tenth + 9
        bars.append(Bar(f"{low}", f"{low} to {high} percent", count))
    return bars


def mean(numbers: list[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def table(records: list[Record]) -> str:
    """Return the CSV: a row per student, a column per exercise, then flags and notebook problems."""
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
    """Quote text that a spreadsheet could read as a formula, even with whitespace before the sign."""
    text = UNPRINTABLE.sub("\ufffd", text)
    begins = text.lstrip(" \t\r\n\u00a0\u200b\ufeff\ufffd")
    return f"'{text}" if begins.startswith(FORMULA) or text[:1] in ("\t", "\r", "\n") else text
