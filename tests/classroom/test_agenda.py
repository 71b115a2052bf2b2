"""A timetable keeps the order, has its breaks, and says what does not fit."""

from __future__ import annotations

import itertools
from datetime import date

import pytest

from course_lib.authoring.outline import outlines
from course_lib.classroom.agenda import (
    BREAK,
    CRUMB,
    LONGEST,
    BadAgenda,
    agenda_markdown,
    choose_exercises,
    dates_from,
    lessons_from,
    make_agenda,
)
from course_lib.classroom.teaching import PLANS
from course_lib.command import main
from course_lib.runtime.course_files import course_folder

NINE, FIVE = 9 * 60, 17 * 60
LESSON_MINUTES = sum(lesson.minutes for lesson in outlines().values())


def made(lessons="00-12", days=2, begin=NINE, until=FIVE, exercises=None):
    return make_agenda(lessons_from(lessons), days=days, begin=begin, until=until, exercise_minutes=exercises)


@pytest.mark.parametrize("exercises", [None, 20])
@pytest.mark.parametrize(("days", "begin", "until"), [(1, NINE, FIVE), (3, 570, 1020), (14, 615, 705), (2, 0, 1439)])
def test_everything_is_in_the_timetable_in_order_or_said_to_be_left_over(days, begin, until, exercises):
    agenda = made(days=days, begin=begin, until=until, exercises=exercises)
    taken = [slot.item for day in agenda.days for slot in day.slots if slot.item.kind not in ("break", "lunch")]
    wanted = [section.heading for lesson in outlines().values() for section in lesson.sections]
    found = [*taken, *agenda.left_over]
    assert [item.title for item in found if item.kind == "section"] == wanted
    assert sum(item.minutes for item in found if item.kind == "section") == LESSON_MINUTES
    text = agenda_markdown(agenda)
    assert all(item.title in text for item in found)


@pytest.mark.parametrize(("days", "begin", "until"), [(3, 570, 1020), (14, 615, 705), (2, 0, 1439)])
def test_nobody_sits_longer_than_ninety_minutes_and_no_day_ends_late(days, begin, until):
    for day in made(days=days, begin=begin, until=until, exercises=30).days:
        sat = 0
        for slot, following in zip(day.slots, [*day.slots[1:], None], strict=True):
            sat = 0 if slot.item.kind in ("break", "lunch") else sat + slot.item.minutes
            assert sat <= LONGEST
            assert following is None or following.begin == slot.end
        assert day.slots[-1].item.kind not in ("break", "lunch")
        assert day.slots[0].begin == begin
        assert day.now <= until


@pytest.mark.parametrize("exercises", [None, 10, 20, 30])
@pytest.mark.parametrize(("days", "begin", "until"), [(3, 570, 1020), (14, 615, 705), (1, 570, 780), (2, 570, 1020)])
def test_nobody_comes_back_from_the_last_break_for_a_few_minutes(days, begin, until, exercises):
    for lessons in ("00-10", "00,02", "00-03"):
        for day in made(lessons, days=days, begin=begin, until=until, exercises=exercises).days:
            kinds = [slot.item.kind for slot in day.slots]
            if "break" in kinds:
                last = len(kinds) - kinds[::-1].index("break")
                assert sum(slot.item.minutes for slot in day.slots[last:]) >= CRUMB
            assert all(one.end == two.begin for one, two in itertools.pairwise(day.slots))


def test_a_whole_day_has_one_lunch_at_noon_and_half_a_day_has_none():
    lunches = [slot for slot in made().days[0].slots if slot.item.kind == "lunch"]
    assert [slot.item.minutes for slot in lunches] == [60]
    assert 12 * 60 - BREAK <= lunches[0].begin <= 13 * 60
    assert not [slot for slot in made(until=13 * 60).days[0].slots if slot.item.kind == "lunch"]


def test_exercises_fill_the_minutes_they_are_given_and_the_others_are_for_home():
    assert [each.number for each in choose_exercises("02", 20)] == ["02.1", "02.2", "02.3"]
    assert [each.number for each in choose_exercises("02", 4)] == []
    assert [each.number for each in choose_exercises("11", 20)] == ["11.1"]
    agenda = made("02", exercises=20)
    assert [each.number for each in agenda.at_home] == ["02.4"]
    assert "02.4 Buckets on the way back (build, 30 minutes)" in agenda_markdown(agenda)


@pytest.mark.parametrize(
    ("text", "lessons"),
    [("0", ["00"]), ("08,00-02", ["08", "00", "01", "02"]), ("9-11", ["09", "10", "11"]), ("02-02", ["02"])],
)
def test_lessons_are_named_as_people_do(text, lessons):
    assert lessons_from(text) == lessons


@pytest.mark.parametrize("text", ["", "13", "1-", "-3", "03-01", "00,00", "x", "00-99", "1..3"])
def test_lessons_that_are_none_get_a_sentence(text):
    with pytest.raises(BadAgenda, match=r"give"):
        lessons_from(text)


def test_days_are_weekdays_a_week_apart_or_as_they_begin():
    friday, saturday = date(2027, 3, 5), date(2027, 3, 6)
    assert [day.day for day in dates_from(friday, 3)] == [5, 8, 9]
    assert [day.day for day in dates_from(saturday, 3)] == [6, 7, 8]
    assert [day.isoformat() for day in dates_from(friday, 2, weekly=True)] == ["2027-03-05", "2027-03-12"]


@pytest.mark.parametrize("plan", PLANS, ids=[plan.name for plan in PLANS])
def test_our_own_plans_fit_and_their_command_makes_them(plan, capsys):
    assert main(plan.command.split()[1:]) == 0
    told = capsys.readouterr().out
    assert "What does not fit" not in told
    assert f"## Day {plan.days}" in told
    assert main(["agenda", "--plan", plan.name]) == 0
    assert capsys.readouterr().out == told
    listed = (course_folder() / "docs" / "teaching" / "README.md").read_text()
    assert f"| [{plan.title}]({plan.name}.md) | `--plan {plan.name}` |" in listed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--from 25:00", "25:00: give a time of day, like 9:30"),
        ("--from 17:00 --until 9:00", "from 17:00 until 9:00: a day needs at least 30 minutes"),
        ("--lessons 13", "13: give lessons like 00-07 or 00,02,06"),
        ("--plan weekend", "weekend: the plans are half_a_day, one_day, two_days, semester"),
        ("--days 0", "--days 0: give a whole number from 1 to 60"),
        ("--date 2027-02-30", "2027-02-30: give a date, like 2027-03-01"),
        ("--exercises none", "none: give minutes for each lesson, from 1 to 600"),
    ],
)
def test_bad_options_get_a_sentence(words, said, capsys):
    assert main(["agenda", *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_what_does_not_fit_is_said(capsys):
    assert main(["agenda", "--days", "1", "--from", "9:00", "--until", "10:00", "--lessons", "00,06"]) == 0
    told = capsys.readouterr().out
    left = outlines()["06"].minutes - 9  # of lesson 06, one section fits
    assert f"## What does not fit: {left} minutes" in told
    assert f"06 · Pipeline parallelism, {left} minutes: 2 · 1F1B" in told
