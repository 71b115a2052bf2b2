"""A timetable as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from course_lib.checks.catalog import LESSONS
from course_lib.classroom.agenda import Agenda, Day, Item, clock, title_of
from course_lib.classroom.outline import outlines


def agenda_markdown(agenda: Agenda, dates: Sequence[date] = (), *, pages: bool = False) -> str:
    """A table for each day, what did not fit, and what is left for home. `pages` links the lessons' teaching pages."""
    blocks = [
        "\n".join(_day_lines(number, day, dates[number - 1] if dates else None, pages))
        for number, day in enumerate(agenda.days, start=1)
    ]
    if agenda.left_over:
        blocks.append("\n".join(_left_over(agenda.left_over)))
    if agenda.at_home:
        listed = [f"- {each.number} {each.title} ({each.level}, {each.minutes} minutes)" for each in agenda.at_home]
        blocks.append("\n".join(["## Exercises for home", "", *listed]))
    return "\n\n".join(blocks) + "\n"


def _day_lines(number: int, day: Day, on: date | None, pages: bool) -> Iterator[str]:
    told = f", {on:%A} {on.isoformat()}" if on else ""
    yield f"## Day {number}{told}: {clock(day.begin)} to {clock(day.now)}"
    yield ""
    yield "| time | minutes | lesson | what |"
    yield "|--:|--:|---|---|"
    lesson = ""
    for slot in day.slots:
        item = slot.item
        named = _lesson_cell(item.lesson, pages) if item.lesson != lesson else ""
        lesson = item.lesson
        yield f"| {clock(slot.begin)} | {item.minutes} | {named} | {_told(item)} |"


def _lesson_cell(lesson: str, pages: bool) -> str:
    if not lesson:
        return ""
    return f"[{title_of(lesson)}]({LESSONS[lesson].name}.md)" if pages and lesson in outlines() else title_of(lesson)


def _told(item: Item) -> str:
    if item.kind in ("break", "lunch"):
        return f"*{item.title}*"
    if item.kind == "exercise":
        return f"**Exercise** {item.title}"
    return f"{item.title} (asks {', '.join(item.asks)})" if item.asks else item.title


def _left_over(items: Sequence[Item]) -> Iterator[str]:
    minutes = sum(item.minutes for item in items)
    yield f"## What does not fit: {minutes} minutes"
    yield ""
    yield "Add a day, end later, or leave lessons out with `--lessons`."
    yield ""
    for lesson in dict.fromkeys(item.lesson for item in items):
        parts = [item for item in items if item.lesson == lesson]
        told = title_of(lesson) if lesson else "The welcome"
        yield f"- {told}, {sum(each.minutes for each in parts)} minutes: {'; '.join(map(_told, parts))}"
