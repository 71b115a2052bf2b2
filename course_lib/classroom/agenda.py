"""Build a timetable from the lessons' minutes, as Markdown: sections, exercises that fit, breaks and lunch."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from course_lib.authoring.outline import outlines
from course_lib.checks.catalog import LESSONS, exercises
from course_lib.checks.exercise import Exercise

LONGEST = 90  # minutes without a break
LONG_ENOUGH = 50  # minutes after which a new lesson starts with a break
CRUMB = 20  # minutes: nobody comes back from a break for less
BREAK, LUNCH, WELCOME = 15, 60, 10
NOON, LATEST_LUNCH = 12 * 60, 13 * 60
AFTERNOON = 14 * 60  # a day that ends earlier has no lunch
CAPSTONE = "11"  # a lesson that consists of one exercise
SATURDAY = 5


class BadAgenda(ValueError):
    """The timetable cannot be made; the message says what to give instead."""


@dataclass(frozen=True)
class Item:
    """One activity of the class."""

    kind: str  # welcome, section, exercise, break or lunch
    lesson: str
    title: str
    minutes: int
    asks: tuple[str, ...] = ()  # the predictions in it


@dataclass(frozen=True)
class Slot:
    """An item with its start time, in minutes after midnight."""

    begin: int
    item: Item

    @property
    def end(self) -> int:
        return self.begin + self.item.minutes


@dataclass
class Day:
    """A day of teaching; `since_break` is the number of minutes since the last break."""

    begin: int
    until: int
    slots: list[Slot] = field(default_factory=list)
    since_break: int = 0
    had_lunch: bool = False

    @property
    def now(self) -> int:
        return self.slots[-1].end if self.slots else self.begin

    def take(self, item: Item) -> bool:
        """Append an item, after a break if one is due. Returns whether there was room for it."""
        pause = self._pause_before(item)
        if self.now + (pause.minutes if pause else 0) + item.minutes > self.until:
            return False
        if pause:
            self.slots.append(Slot(self.now, pause))
            self.since_break = 0
            self.had_lunch = self.had_lunch or pause.kind == "lunch"
        self.slots.append(Slot(self.now, item))
        self.since_break += item.minutes
        return True

    def without_crumbs(self) -> list[Item]:
        """Move the last break earlier until what follows it is worth coming back for.

        If that is impossible, remove exercises instead. Returns the removed exercises.
        """
        items = [slot.item for slot in self.slots]
        pauses = [place for place, item in enumerate(items) if item.kind in ("break", "lunch")]
        if not pauses or items[pauses[-1]].kind == "lunch" or _minutes(items[pauses[-1] + 1 :]) >= CRUMB:
            return []
        last, earliest = pauses[-1], (pauses[-2] if len(pauses) > 1 else -1) + 2
        long_enough = (place for place in range(last - 1, earliest - 1, -1) if _minutes(items[place:]) - BREAK >= CRUMB)
        moved = next(long_enough, None)
        if moved is None:
            is_crumb = all(item.kind == "exercise" for item in items[last + 1 :])
            self.slots = self.slots[:last] if is_crumb else self.slots
            return items[last + 1 :] if is_crumb else []
        begin = self.slots[moved].begin
        for place, item in enumerate([items[last], *items[moved:last], *items[last + 1 :]], moved):
            self.slots[place] = Slot(begin, item)
            begin += item.minutes
        return []

    def _pause_before(self, item: Item) -> Item | None:
        begins_lesson = bool(self.slots) and item.kind == "section" and self.slots[-1].item.lesson != item.lesson
        is_due = self.since_break + item.minutes > LONGEST or (begins_lesson and self.since_break >= LONG_ENOUGH)
        wants_lunch = not self.had_lunch and self.begin < NOON and self.until >= AFTERNOON
        if wants_lunch and (self.now + item.minutes > LATEST_LUNCH or (is_due and self.now >= NOON - BREAK)):
            return Item("lunch", "", "Lunch", LUNCH)
        return Item("break", "", "Break", BREAK) if is_due and self.slots else None


def _minutes(items: Sequence[Item]) -> int:
    return sum(item.minutes for item in items)


@dataclass(frozen=True)
class Agenda:
    """The days with their slots, the items that did not fit, and the exercises left as homework."""

    days: list[Day]
    left_over: list[Item]
    at_home: list[Exercise]


def make_agenda(
    lessons: Sequence[str], *, days: int, begin: int, until: int, exercise_minutes: int | None = None
) -> Agenda:
    """Distribute the lessons' sections over days, in order. With `exercise_minutes`, each lesson is followed by the
    exercises that best fill that time. The first item that does not fit and everything after it are left over.
    """
    if until - begin < BREAK * 2:
        raise BadAgenda(f"from {clock(begin)} until {clock(until)}: a day needs at least {BREAK * 2} minutes")
    chosen = {lesson: choose_exercises(lesson, exercise_minutes) for lesson in lessons}
    items = [Item("welcome", "", "Welcome: everybody opens the course with `course lab`", WELCOME)]
    for lesson in lessons:
        items += [*_sections(lesson), *map(_exercise_item, chosen[lesson])]
    plan, left_over, waiting = [Day(begin, until)], [], deque(items)
    while waiting:
        if plan[-1].take(waiting[0]):
            waiting.popleft()
            continue
        if len(plan) == days or not Day(begin, until).take(waiting[0]):
            left_over = list(waiting)
            break
        waiting.extendleft(reversed(plan[-1].without_crumbs()))  # they come first on the next day
        plan.append(Day(begin, until))
    plan[-1].without_crumbs()
    done = {slot.item.title for day in plan for slot in day.slots if slot.item.kind == "exercise"}
    known = [exercise for exercise in _by_number() if exercise.lesson in lessons]
    return Agenda(plan, left_over, [exercise for exercise in known if _exercise_item(exercise).title not in done])


def choose_exercises(lesson: str, minutes: int | None) -> list[Exercise]:
    """Return the exercises that best fill this many minutes, the first set on a tie. The capstone is never split."""
    known = [exercise for exercise in _by_number() if exercise.lesson == lesson]
    if lesson == CAPSTONE:
        return known
    sets = [some for size in range(len(known) + 1) for some in itertools.combinations(known, size)]
    fitting = [some for some in sets if sum(each.minutes for each in some) <= (minutes or 0)]
    return list(max(fitting, key=lambda some: sum(each.minutes for each in some)))


def lessons_from(text: str) -> list[str]:
    """Parse a list of lessons such as `00-07` or `00,02,06-08`."""
    known, found = [*outlines(), CAPSTONE], []
    for word in text.split(","):
        parts = re.fullmatch(r"\s*(\d{1,2})(?:-(\d{1,2}))?\s*", word, re.ASCII)
        first, last = (part.zfill(2) for part in (parts[1], parts[2] or parts[1])) if parts else ("", "")
        if first not in known or last not in known:
            raise BadAgenda(f"{text}: give lessons like 00-07 or 00,02,06; the lessons are {', '.join(known)}")
        found += [lesson for lesson in known if first <= lesson <= last]
    if len(set(found)) < len(found) or not found:
        raise BadAgenda(f"{text}: give each lesson once, and write ranges from first to last, like 00-07")
    return found


def clock(minutes: int) -> str:
    """Format minutes after midnight as a time of day: 9:05."""
    return f"{minutes // 60}:{minutes % 60:02}"


def _sections(lesson: str) -> list[Item]:
    if lesson == CAPSTONE:
        return []
    return [
        Item("section", lesson, section.heading, section.minutes, tuple(section.asked))
        for section in outlines()[lesson].sections
    ]


def _exercise_item(exercise: Exercise) -> Item:
    return Item("exercise", exercise.lesson, f"{exercise.number} {exercise.title}", exercise.minutes)


def _by_number() -> list[Exercise]:
    return sorted(exercises().values(), key=lambda exercise: exercise.number)


def title_of(lesson: str) -> str:
    """Return a lesson's display name: 06 · Pipeline parallelism."""
    return f"{lesson} · {LESSONS[lesson].title.partition(':')[0]}"


def dates_from(first: date, days: int, *, weekly: bool = False) -> list[date]:
    """Return the dates of a class, weekly or daily. A class that starts on a weekday skips weekends."""
    if weekly:
        return [first + timedelta(weeks=number) for number in range(days)]
    every = (first + timedelta(days=number) for number in itertools.count())
    wanted = (day for day in every if first.weekday() >= SATURDAY or day.weekday() < SATURDAY)
    return list(itertools.islice(wanted, days))


def agenda_markdown(agenda: Agenda, dates: Sequence[date] = (), *, pages: bool = False) -> str:
    """Return a table per day, what did not fit, and the homework. `pages` adds links to the teaching pages."""
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
    minutes = _minutes(items)
    yield f"## What does not fit: {minutes} minutes"
    yield ""
    yield "Add a day, end later, or leave lessons out with `--lessons`."
    yield ""
    for lesson in dict.fromkeys(item.lesson for item in items):
        parts = [item for item in items if item.lesson == lesson]
        told = title_of(lesson) if lesson else "The welcome"
        yield f"- {told}, {sum(each.minutes for each in parts)} minutes: {'; '.join(map(_told, parts))}"
