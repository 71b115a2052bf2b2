"""`course class`, `course slides` and `course agenda`: prepare and teach a class."""

from __future__ import annotations

import argparse
import re
from datetime import date, datetime
from pathlib import Path

from course_lib.command import arguments as types
from course_lib.command.arguments import complain, option
from course_lib.runtime.interrupt import exiting_on_interrupt

EXERCISE_MINUTES = 20  # per lesson, for --exercises without a number


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course class`, `course slides` and `course agenda`."""
    _add_class(commands)
    slides = commands.add_parser(
        "slides",
        help="export a lesson as slides, in one file that needs no network",
        description="Export a lesson as slides, in one HTML file that needs no network: large type, stored outputs, "
        "questions before their answers. Move with the arrow keys; p opens the presenter's view, with notes, a clock "
        "and the next slide.",
    )
    option(slides, "lesson", "the lesson's number, like 06", metavar="LESSON")
    page = types.file_ending_in(".html", ".htm")
    option(slides, "--out", "default: NAME_OF_THE_LESSON.html, in the current folder", page, "FILE.html")
    slides.set_defaults(run=_slides)

    agenda = commands.add_parser(
        "agenda",
        help="make a timetable from the length of each lesson",
        description="Make a timetable from the lengths of the lessons' sections, with a break at least every 90 "
        "minutes, lunch, and the exercises that fit. Anything that does not fit is listed at the end.",
    )
    option(agenda, "--plan", "half_a_day, one_day, two_days or semester: sets days, hours and lessons", metavar="NAME")
    option(agenda, "--days", "default: 1", types.number(1, 60), default=1)
    option(agenda, "--from", "default: 9:30", _time, "TIME", dest="begin", default=9 * 60 + 30)
    option(agenda, "--until", "default: 17:00", _time, "TIME", default=17 * 60)
    option(agenda, "--lessons", "like 00-07 or 00,02,06 (default: 00-09)", default="00-09")
    option(
        agenda,
        "--exercises",
        f"add the exercises that fit into this many minutes after each lesson (no number: {EXERCISE_MINUTES})",
        types.number(1, 600, "give minutes for each lesson, from 1 to 600"),
        "MINUTES",
        nargs="?",
        const=EXERCISE_MINUTES,
    )
    option(agenda, "--date", "the first day", _date, "YYYY-MM-DD")
    option(agenda, "--weekly", "the days are a week apart", bool)
    option(agenda, "--out", "write it to a file instead of printing it", types.output_file, "FILE.md")
    agenda.set_defaults(run=_agenda)


def _slides(options: argparse.Namespace) -> int:
    with exiting_on_interrupt():
        from course_lib.authoring.outline import find_outline
        from course_lib.classroom.slides import slides_page
        from course_lib.classroom.teaching import speaker_notes

    lesson = find_outline(options.lesson)
    page = slides_page(lesson, speaker_notes(lesson))
    path = Path(options.out or f"{lesson.name}.html")
    path.write_text(page, encoding="utf-8")
    print(f"{path}: open it in a browser; p opens the presenter's view")
    return 0


def _agenda(options: argparse.Namespace) -> int:
    with exiting_on_interrupt():
        from course_lib.classroom.agenda import agenda_markdown, dates_from, lessons_from, make_agenda
        from course_lib.classroom.teaching import find_plan

    if options.plan:
        for name, value in find_plan(options.plan).options.items():
            setattr(options, name, value)
    agenda = make_agenda(
        lessons_from(options.lessons),
        days=options.days,
        begin=options.begin,
        until=options.until,
        exercise_minutes=options.exercises,
    )
    dates = dates_from(options.date, options.days, weekly=options.weekly) if options.date else []
    text = agenda_markdown(agenda, dates)
    if options.out:
        Path(options.out).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def _time(text: str) -> int:
    """Parse a time of day into minutes after midnight."""
    match = re.fullmatch(r"(\d{1,2}):([0-5]\d)", text.strip(), re.ASCII)
    if not match or int(match[1]) > 23:
        raise types.refusal(text, "give a time of day, like 9:30")
    return 60 * int(match[1]) + int(match[2])


def _date(text: str) -> date:
    try:
        return datetime.strptime(text.strip(), "%Y-%m-%d").date()
    except ValueError:
        raise types.refusal(text, "give a date, like 2027-03-01") from None


def _add_class(commands: argparse._SubParsersAction) -> None:
    """Add `course class`."""
    command = commands.add_parser(
        "class",
        help="teach a class: see live what learners answer, where they are and who is stuck",
        description="Teach a class: learners join with a code, and you see live what they answer, where they are and "
        "who is stuck. Everything is saved in a record; start again with the same record to continue the class.",
    )
    option(command, "--port", "the server's port (default: 8899)", types.port, default=8899)
    option(
        command,
        "--host",
        "the address to listen on; 0.0.0.0 means all of this machine's (default: 127.0.0.1, this machine only)",
        default="127.0.0.1",
    )
    option(command, "--record", "the class's record (default: class.db)", types.output_file, "FILE", default="class.db")
    option(command, "--title", "the class's title")
    option(command, "--tls", "encrypt with a certificate made for this class", bool)
    option(command, "--address", "the address that learners use, if the server is behind a proxy", metavar="URL")
    option(command, "--anonymous", "do not store names; learners are numbered", bool)
    option(command, "--no-browser", "only print the addresses", bool)
    option(command, "--hub", "run as a JupyterHub service: see docs/deploy/jupyterhub", bool)
    option(command, "--group", "the Hub group that may join (default: learners)", default="learners")
    command.set_defaults(run=_serve_class)

    inside = command.add_subparsers(metavar="report")
    report = inside.add_parser(
        "report",
        help="after a class: a page and tables of what learners answered, tried and asked",
        description="Write a page (index.html) and two tables (learners.csv, questions.csv) from a class's record.",
    )
    option(report, "record", "the class's record", metavar="RECORD")
    option(report, "--out", "where to write; created if needed", metavar="FOLDER", required=True)
    report.set_defaults(run=_report)


def _serve_class(options: argparse.Namespace) -> int:
    from course_lib.classroom.server import Options, serve

    names = ("port", "host", "record", "title", "tls", "anonymous", "address")
    class_options = Options(
        **{name: getattr(options, name) for name in names}, browser=not options.hub and not options.no_browser
    )
    if not options.hub:
        return serve(class_options)
    try:
        from course_lib.classroom.server.hub import serve_in_hub
    except ModuleNotFoundError as error:
        return complain(f"--hub needs {error.name}, which is not installed: pip install -e '.[hub]'")
    return serve_in_hub(class_options, learners=options.group)


def _report(options: argparse.Namespace) -> int:
    from course_lib.classroom.report import write_report

    write_report(Path(options.record), Path(options.out))
    print(f"wrote {Path(options.out) / 'index.html'}, learners.csv and questions.csv")
    return 0
