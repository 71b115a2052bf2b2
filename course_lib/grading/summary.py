"""The marks of a class put together: by student, by exercise, by mistake; and as CSV, for a spreadsheet."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cached_property

from course_lib.checks import exercises
from course_lib.checks.markup import UNPRINTABLE
from course_lib.grading.records import Mark, Record

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001 - a spreadsheet may take the wide ones for them
LEFT_OUT = "-"  # in place of points: an exercise that was not tried


@dataclass(frozen=True)
class Flag:
    """Something that a clock decided, so that it is tried again the next time."""

    where: str  # a notebook or an exercise
    what: str  # the whole of it, or the parts

    @property
    def in_words(self) -> str:
        return f"{self.where} ({self.what})"


@dataclass(frozen=True)
class Student:
    """All that one student has handed in."""

    name: str
    records: list[Record]

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """By exercise."""
        return {mark.number: mark for record in self.records for mark in record.marks}

    @cached_property
    def points(self) -> int:
        return sum(mark.points for mark in self.marks.values())

    @property
    def handed_in(self) -> bool:
        """Whether there was a notebook with exercises in it, be it a broken one."""
        return bool(self.marks)

    @property
    def flags(self) -> list[Flag]:
        return [flag for record in self.records for flag in flags_of(record)]

    @property
    def problems(self) -> list[str]:
        """With whole notebooks."""
        return [record.problem for record in self.records if record.problem]

    def tried(self, number: str) -> bool:
        return number in self.marks and self.marks[number].attempted


@dataclass(frozen=True)
class Mistake:
    """Who made a mistake that is known; with no cause, who lost points for reasons of their own."""

    number: str
    cause: str
    students: dict[str, str]  # by name, what each was told


@dataclass(frozen=True)
class Bar:
    """So many students have what the label says, and `told` in more words."""

    label: str
    told: str
    count: int


def by_student(records: list[Record]) -> list[Student]:
    """In the order of their names."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.student, []).append(record)
    return [Student(name, found[name]) for name in sorted(found, key=lambda name: (name.casefold(), name))]


def exercises_of(records: list[Record]) -> list[str]:
    """The numbers of all exercises that somebody has a mark for."""
    return sorted({mark.number for record in records for mark in record.marks})


def points_in_all(numbers: list[str]) -> int:
    return sum(exercises()[number].points for number in numbers)


def flags_of(record: Record) -> list[Flag]:
    """What a clock decided in a notebook."""
    whole = [Flag(record.notebook, "the whole notebook")] if record.stopped_by_clock else []
    return whole + [Flag(mark.number, ", ".join(mark.by_clock)) for mark in record.marks if mark.by_clock]


def lost_parts(mark: Mark) -> list[str]:
    """The parts of an exercise that did not earn all their points."""
    most = exercises()[mark.number].parts
    return [part for part, earned in mark.parts.items() if earned < most.get(part, earned)]


def marks_of(students: list[Student], number: str) -> list[Mark]:
    """The marks of those who have tried an exercise."""
    return [student.marks[number] for student in students if student.tried(number)]


def right_in(marks: list[Mark], part: str) -> int:
    """How many of these marks earned all points of a part."""
    return sum(part not in lost_parts(mark) for mark in marks)


def mistakes(students: list[Student]) -> list[Mistake]:
    """Each mistake once, the most frequent first, those without a name last. A student makes one once."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for student in students:
        for mark in student.marks.values():
            lost = [part for part in lost_parts(mark) if mark.attempted and part not in mark.by_clock]
            for part in lost:
                who = found.setdefault((mark.number, mark.causes.get(part, "")), {})
                who.setdefault(student.name, mark.remarks.get(part, ""))
    made = [Mistake(number, cause, who) for (number, cause), who in found.items()]
    return sorted(made, key=lambda each: (not each.cause, -len(each.students), each.number, each.cause))


def points_distribution(students: list[Student], number: str, most_bars: int = 11) -> list[Bar]:
    """How many students have how many points in an exercise; those who have not tried it are the first bar."""
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
    """How many students have which share of all points, in tenths; those who handed in nothing are the first bar."""
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
