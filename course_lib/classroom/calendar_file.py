"""A timetable as a calendar file (iCalendar, RFC 5545): an event for each stretch of a lesson, exercise or break."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta, timezone

from course_lib.classroom.agenda import Agenda, Day, Slot, clock, title_of

LONGEST_LINE = 75  # bytes; what is longer goes on in a line that begins with a space
SATURDAY = 5


def dates_from(first: date, days: int, *, weekly: bool = False) -> list[date]:
    """The dates of a class: a week apart, or one after another; what begins on a weekday leaves weekends out."""
    if weekly:
        return [first + timedelta(weeks=number) for number in range(days)]
    every = (first + timedelta(days=number) for number in itertools.count())
    wanted = (day for day in every if first.weekday() >= SATURDAY or day.weekday() < SATURDAY)
    return list(itertools.islice(wanted, days))


def calendar(agenda: Agenda, dates: Sequence[date]) -> str:
    """The text of a calendar file. Its times have no zone: they are those of the room."""
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//course-lib//agenda//EN"]
    for day, on in zip(agenda.days, dates, strict=False):
        for slots in _stretches(day):
            lines += _event(slots, on)
    lines.append("END:VCALENDAR")
    return "".join(f"{_folded(line)}\r\n" for line in lines)


def _stretches(day: Day) -> Iterator[list[Slot]]:
    """Sections of one lesson that follow each other are one event; everything else is one of its own."""
    for _, slots in itertools.groupby(day.slots, key=lambda slot: (slot.item.kind, slot.item.lesson)):
        yield list(slots)


def _event(slots: list[Slot], on: date) -> Iterator[str]:
    begin, end = _moment(on, slots[0].begin), _moment(on, slots[-1].end)
    first = slots[0].item
    title = first.title if not first.lesson else title_of(first.lesson)
    title = f"Exercises: {title}" if first.kind == "exercise" else title.replace("`", "")
    told = "\n".join(f"{clock(slot.begin)} {slot.item.title}, {slot.item.minutes} minutes" for slot in slots)
    named = hashlib.sha256(f"{begin}{title}".encode()).hexdigest()[:24]
    yield "BEGIN:VEVENT"
    yield f"UID:{named}@course-lib"
    yield f"DTSTAMP:{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    yield f"DTSTART:{begin:%Y%m%dT%H%M%S}"
    yield f"DTEND:{end:%Y%m%dT%H%M%S}"
    yield f"SUMMARY:{_escaped(title)}"
    yield f"DESCRIPTION:{_escaped(told)}"
    yield "END:VEVENT"


def _moment(on: date, minutes: int) -> datetime:
    return datetime(on.year, on.month, on.day) + timedelta(minutes=minutes)


def _escaped(text: str) -> str:
    for letter in "\\;,":
        text = text.replace(letter, f"\\{letter}")
    return text.replace("\n", "\\n")


def _folded(line: str) -> str:
    """A line in pieces that are short enough, none of which cuts a character in two."""
    pieces, piece = [], ""
    for letter in line:
        if len((piece + letter).encode()) > LONGEST_LINE:
            pieces.append(piece)
            piece = " "
        piece += letter
    return "\r\n".join([*pieces, piece])
