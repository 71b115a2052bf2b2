"""`course check` and `progress` for your own exercises; `course grade`, `release` and `collect` for a class's."""

from __future__ import annotations

import argparse
from pathlib import Path

from course_lib.command import arguments as types
from course_lib.command.arguments import BadUsage, option
from course_lib.launcher.notebook.launch import warm_up
from course_lib.runtime.interrupt import exiting_on_interrupt


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course check`, `progress`, `grade`, `release` and `collect`."""
    check = commands.add_parser("check", help="check the answers in an exercise notebook")
    check.add_argument("notebook", type=types.words, metavar="NOTEBOOK.ipynb")
    check.set_defaults(run=_check)

    progress = commands.add_parser("progress", help="show your progress: predictions, exercises, and what comes next")
    progress.set_defaults(run=_progress)

    grade = commands.add_parser(
        "grade",
        help="grade the exercises that a class handed in",
        description="Grade the exercises that a class handed in: a page for each student, and a page and a table for "
        "the class. After an interruption, run it again to continue where it stopped.",
    )
    option(grade, "submissions", "a folder with one folder per student", metavar="SUBMISSIONS", nargs="?")
    option(grade, "--out", "a folder for index.html, pages, the table and records", metavar="GRADES")
    option(grade, "--explain", "show what protects this machine from submissions, and exit", bool)
    option(grade, "--jobs", "how many notebooks at a time (default: one per core)", types.count)
    option(grade, "--seed", "a seed for the test inputs, to use your own set", types.seed)
    option(grade, "--part", "grade only part K of N fixed parts of the students, like 3/8", types.part, metavar="K/N")
    option(grade, "--merge", "join the parts that were graded with --part", bool)
    option(grade, "--again", "grade everything again", bool)
    option(grade, "--flagged", "grade the flagged submissions again", bool)
    option(grade, "--gradebook", "nbgrader's database, for example sqlite:///gradebook.db", metavar="DATABASE")
    grade.add_argument(
        "--csv", choices=("moodle", "canvas"), help="also write the table that this platform imports, into GRADES"
    )
    option(grade, "--students", "the gradebook exported from that platform, to match students", metavar="EXPORT.csv")
    option(
        grade,
        "--no-sandbox",
        "run submissions with your own permissions: they can read, change and send whatever you can",
        bool,
    )
    grade.set_defaults(run=_grade)

    release = commands.add_parser(
        "release",
        help="copy the exercises into folders, to hand out",
        description="Copy the exercises into FOLDER, with a folder for each lesson, to hand out. The command checks "
        "that none of them contains an answer.",
    )
    release.add_argument("folder", type=types.words, metavar="FOLDER")
    option(release, "--lessons", "only these lessons", metavar="02", nargs="+", default=[])
    release.set_defaults(run=_release)

    collect = commands.add_parser(
        "collect",
        help="collect a class's work, for `course grade`",
        description="Collect students' work from FOLDER. It contains a folder for each student (home folders, or a "
        "Moodle download), or files named as Canvas names them. Files collected earlier stay if they are newer.",
    )
    collect.add_argument("folder", type=types.words, metavar="FOLDER")
    option(collect, "--into", "the folder to give to `course grade`", metavar="SUBMISSIONS", required=True)
    option(collect, "--students", "the students' names, one per line", metavar="NAMES.txt")
    option(collect, "--lessons", "only these lessons", metavar="02", nargs="+", default=[])
    collect.set_defaults(run=_collect)


def _check(options: argparse.Namespace) -> int:
    warm_up()
    with exiting_on_interrupt():
        from course_lib.checks import check_notebook

    return 0 if check_notebook(options.notebook) else 1


def _progress(_: argparse.Namespace) -> int:
    with exiting_on_interrupt():
        from course_lib.checks import progress
        from course_lib.checks.catalog import exercises

        exercises()  # imports the exercises
    progress()
    return 0


def _grade(options: argparse.Namespace) -> int:
    from course_lib.grading.interrupts import ended_by_an_interrupt

    with ended_by_an_interrupt("finished grades are saved: run the same command again to continue"):
        from course_lib.grading.grader import grade

        if options.explain:
            from course_lib.grading.protection import explain

            print(explain())
            return 0
        if options.submissions is None or options.out is None:
            raise BadUsage("grade: give SUBMISSIONS, a folder, and --out GRADES, a different one")
        if options.students and not options.csv:
            raise BadUsage("grade --students: add --csv moodle or --csv canvas, the platform that the file comes from")
        if options.part and (options.merge or options.gradebook or options.csv):
            raise BadUsage("grade --part: use --merge, --gradebook and --csv only after all parts are graded")
        if options.merge and (options.again or options.flagged):
            raise BadUsage("grade --merge: it runs no submission; give --again or --flagged with --part")
        ours = ("run", "argv", "words", "explain")
        print(grade(**{name: value for name, value in vars(options).items() if name not in ours}))
    return 0


def _release(options: argparse.Namespace) -> int:
    from course_lib.classroom.exchange import release

    folder = Path(options.folder)
    names = release(folder, options.lessons)
    print(f"Copied to {folder}, without answers: {', '.join(names)}")
    return 0


def _collect(options: argparse.Namespace) -> int:
    from course_lib.classroom.exchange import collect

    students, names = options.students, []
    if students and not Path(students).is_file():  # some devices never end
        raise BadUsage(f"--students {students}: this is not a file; give one with a name on each line")
    if students:
        try:
            names = Path(students).read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise BadUsage(f"--students {students}: it is not text in UTF-8; give a name on each line") from None
    expected = [name.strip() for name in names if name.strip()]
    print(collect(Path(options.folder), Path(options.into), options.lessons, expected))
    return 0
