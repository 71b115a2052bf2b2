"""`course check`, `progress`, `grade`, `release` and `collect`: exercises, your own and a class's."""

from __future__ import annotations

import argparse
from pathlib import Path

from course_lib.cli import arguments as types
from course_lib.cli.arguments import BadUsage, complain
from course_lib.launchers import warm_up
from course_lib.launchers.torchrun import leaving_at_once


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course check`, `progress`, `grade`, `release` and `collect`."""
    check = commands.add_parser("check", help="check the answers in an exercise notebook")
    check.add_argument("notebook", type=types.words, metavar="NOTEBOOK.ipynb")
    check.set_defaults(run=_check)

    done = commands.add_parser("progress", help="show how far you are: predictions, exercises, and what comes next")
    done.set_defaults(run=_progress)

    grade = commands.add_parser(
        "grade",
        help="grade the exercises that a class handed in",
        description="Grade the exercises that a class handed in: a page for each student, and a page and a table for "
        "the class. After an interruption, run it again to continue where it stopped.",
    )
    grade.add_argument(
        "submissions", type=types.words, nargs="?", metavar="SUBMISSIONS", help="a folder with one folder per student"
    )
    grade.add_argument(
        "--out", type=types.words, metavar="GRADES", help="a folder for index.html, pages, the table and records"
    )
    grade.add_argument(
        "--explain", action="store_true", help="show what protects this machine from submissions, and exit"
    )
    grade.add_argument("--jobs", type=types.count, help="how many notebooks at a time (default: one per core)")
    grade.add_argument("--seed", type=types.seed, help="the seed of the test inputs, to use your own set")
    grade.add_argument("--again", action="store_true", help="grade everything again")
    grade.add_argument(
        "--gradebook",
        type=types.words,
        metavar="DATABASE",
        help="nbgrader's database, for example sqlite:///gradebook.db",
    )
    grade.add_argument(
        "--csv", choices=("moodle", "canvas"), help="also write the table that this platform imports, into GRADES"
    )
    grade.add_argument(
        "--students",
        type=types.words,
        metavar="EXPORT.csv",
        help="the gradebook exported from that platform, to match students",
    )
    grade.add_argument(
        "--no-sandbox",
        action="store_true",
        help="run submissions with your own permissions: they can read, change and send whatever you can",
    )
    grade.set_defaults(run=_grade)
    _add_exchange(commands)


def _check(options: argparse.Namespace) -> int:
    warm_up()
    with leaving_at_once():
        from course_lib.checks import check_notebook
        from course_lib.checks.notebooks import BadNotebook

    try:
        return 0 if check_notebook(options.notebook) else 1
    except BadNotebook as error:
        return complain(error, status=2)


def _progress(_: argparse.Namespace) -> int:
    with leaving_at_once():
        from course_lib.checks import exercises, progress

        exercises()  # imports the exercises
    progress()
    return 0


def _grade(options: argparse.Namespace) -> int:
    from course_lib.grading.interrupts import ended_by_an_interrupt

    with ended_by_an_interrupt("what was graded is kept: run the same command again to go on from here"):
        from course_lib.grading.gradebook import NoGradebook
        from course_lib.grading.grader import grade
        from course_lib.grading.platforms import BadStudents
        from course_lib.grading.sandbox import NoSandbox
        from course_lib.grading.submissions import BadSubmissions

        if options.explain:
            from course_lib.grading.protection import explain

            print(explain())
            return 0
        if options.submissions is None or options.out is None:
            raise BadUsage("grade: give SUBMISSIONS, a folder, and --out GRADES, a different one")
        if options.students and not options.csv:
            raise BadUsage("grade --students: say with --csv moodle or --csv canvas where the file comes from")
        given = {
            name: value for name, value in vars(options).items() if name not in ("run", "argv", "words", "explain")
        }
        try:
            print(grade(**given))
        except (BadSubmissions, BadStudents, NoSandbox, NoGradebook) as error:
            return complain(error, status=2)
    return 0


def _add_exchange(commands: argparse._SubParsersAction) -> None:
    """Add `course release` and `course collect`."""
    release = commands.add_parser(
        "release",
        help="copy the exercises into folders, to hand out",
        description="Copy the exercises into FOLDER, with a folder for each lesson, to hand out. The command checks "
        "that none of them contains an answer.",
    )
    release.add_argument("folder", type=types.words, metavar="FOLDER")
    _add_lessons(release)
    release.set_defaults(run=_release)

    collect = commands.add_parser(
        "collect",
        help="collect a class's work, for `course grade`",
        description="Collect students' work from FOLDER. It contains a folder for each student (home folders, or a "
        "Moodle download), or files named as Canvas names them. Files collected earlier stay if they are newer.",
    )
    collect.add_argument("folder", type=types.words, metavar="FOLDER")
    collect.add_argument(
        "--into", type=types.words, required=True, metavar="SUBMISSIONS", help="the folder to give to `course grade`"
    )
    collect.add_argument(
        "--students", type=types.words, metavar="NAMES.txt", help="the names of the class, one per line"
    )
    _add_lessons(collect)
    collect.set_defaults(run=_collect)


def _add_lessons(command: argparse.ArgumentParser) -> None:
    command.add_argument("--lessons", type=types.words, nargs="+", default=[], metavar="02", help="only these lessons")


def _release(options: argparse.Namespace) -> int:
    from course_lib.classroom.exchange import BadExchange, release

    folder = Path(options.folder)
    try:
        names = release(folder, options.lessons)
    except BadExchange as error:
        return complain(error, status=2)
    print(f"In {folder}, none with an answer in it: {', '.join(names)}")
    return 0


def _collect(options: argparse.Namespace) -> int:
    from course_lib.classroom.exchange import BadExchange, collect

    try:
        expected = _names(options.students) if options.students else []
        print(collect(Path(options.folder), Path(options.into), options.lessons, expected))
    except BadExchange as error:
        return complain(error, status=2)
    return 0


def _names(path: str) -> list[str]:
    """Return the names in a file, one per line."""
    if not Path(path).is_file():
        raise BadUsage(f"--students {path}: this is not a file; give one with a name on each line")
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise BadUsage(f"--students {path}: it is not text in UTF-8; give a file with a name on each line") from None
    return [line.strip() for line in lines if line.strip()]
