"""`course slides` and `course agenda`: prepare a class."""

from __future__ import annotations

import argparse
import re
from datetime import date
from pathlib import Path

from course_lib.cli import arguments as take
from course_lib.cli.arguments import complain
from course_lib.launchers.torchrun import leaving_at_once

EXERCISE_MINUTES = 20  # per lesson, for --exercises without a number


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course slides` and `course agenda`."""
    slides = commands.add_parser(
        "slides",
        help="export a lesson as slides, in one file that needs no network",
        description="Export a lesson as slides, in one HTML file that needs no network: large type, stored outputs, "
        "questions before their answers. Move with the arrow keys; p opens the presenter's view, with notes, a clock "
        "and the next slide.",
    )
    slides.add_argument("lesson", type=take.words, metavar="LESSON", help="the lesson's number, like 06")
    page = take.file_ending_in(".html", ".htm")
    slides.add_argument(
        "--out", type=page, metavar="FILE.html", help="default: NAME_OF_THE_LESSON.html, in the current folder"
    )
    slides.set_defaults(run=_slides)

    agenda = commands.add_parser(
        "agenda",
        help="make a timetable from the minutes that the lessons state",
        description="Make a timetable from the minutes of the lessons' sections: breaks after at most 90 minutes, "
        "lunch, exercises that fit. Whatever does not fit is listed at the end.",
    )
    agenda.add_argument("--days", type=take.whole_number(1, 60, "a number of days"), default=1, help="default: 1")
    agenda.add_argument("--from", type=_time, dest="begin", default=9 * 60 + 30, metavar="TIME", help="default: 9:30")
    agenda.add_argument("--until", type=_time, default=17 * 60, metavar="TIME", help="default: 17:00")
    agenda.add_argument("--lessons", type=take.words, default="00-09", help="like 00-07 or 00,02,06 (default: 00-09)")
    agenda.add_argument(
        "--exercises",
        type=take.whole_number(1, 600, "minutes for each lesson,"),
        nargs="?",
        const=EXERCISE_MINUTES,
        metavar="MINUTES",
        help=f"add the exercises that fit into this many minutes after each lesson (no number: {EXERCISE_MINUTES})",
    )
    agenda.add_argument("--date", type=_date, metavar="YYYY-MM-DD", help="the first day")
    agenda.add_argument("--weekly", action="store_true", help="the days are a week apart")
    agenda.add_argument(
        "--out", type=take.output_file, metavar="FILE.md", help="write it to a file instead of printing it"
    )
    agenda.set_defaults(run=_agenda)


def _slides(options: argparse.Namespace) -> int:
    with leaving_at_once():
        from course_lib.authoring.outline import NoLesson, find_outline
        from course_lib.classroom.slides import CannotExport, slides_page
        from course_lib.classroom.teaching import speaker_notes

    try:
        lesson = find_outline(options.lesson)
        page = slides_page(lesson, speaker_notes(lesson))
    except NoLesson as error:
        return complain(error, status=2)
    except CannotExport as error:
        return complain(error)
    path = Path(options.out or f"{lesson.name}.html")
    path.write_text(page, encoding="utf-8")
    print(f"{path}: open it in a browser; p opens the presenter's view")
    return 0


def _agenda(options: argparse.Namespace) -> int:
    with leaving_at_once():
        from course_lib.classroom.agenda import BadAgenda, agenda_markdown, dates_from, lessons_from, make_agenda

    try:
        lessons = lessons_from(options.lessons)
        made = make_agenda(
            lessons, days=options.days, begin=options.begin, until=options.until, exercise_minutes=options.exercises
        )
    except BadAgenda as error:
        return complain(error, status=2)
    dates = dates_from(options.date, options.days, weekly=options.weekly) if options.date else []
    text = agenda_markdown(made, dates)
    if options.out:
        Path(options.out).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def _time(text: str) -> int:
    """Parse a time of day into minutes after midnight."""
    found = re.fullmatch(r"(\d{1,2}):([0-5]\d)", text.strip(), re.ASCII)
    if not found or int(found[1]) > 23:
        raise argparse.ArgumentTypeError(f"{text.strip() or repr(text)}: give a time of the day, like 9:30")
    return 60 * int(found[1]) + int(found[2])


def _date(text: str) -> date:
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", text.strip(), re.ASCII):
            raise ValueError
        return date.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text.strip() or repr(text)}: give a date, like 2027-03-01") from None
