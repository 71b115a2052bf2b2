"""`course check`, `course progress` and `course grade`: exercises, your own and a class's."""

from __future__ import annotations

import argparse

from course_lib.cli import arguments as take
from course_lib.cli.arguments import BadUsage, complain
from course_lib.launchers import warm_up
from course_lib.launchers.torchrun import leaving_at_once


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course check`, `course progress` and `course grade`."""
    check = commands.add_parser("check", help="check the answers in an exercise notebook")
    check.add_argument("notebook", type=take.words, metavar="NOTEBOOK.ipynb")
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
        "submissions", type=take.words, nargs="?", metavar="SUBMISSIONS", help="a folder with one folder per student"
    )
    grade.add_argument(
        "--out", type=take.words, metavar="GRADES", help="a folder for index.html, pages, the table and records"
    )
    grade.add_argument(
        "--explain", action="store_true", help="show what protects this machine from submissions, and exit"
    )
    grade.add_argument("--jobs", type=take.count, help="how many notebooks at a time (default: one per core)")
    grade.add_argument("--seed", type=take.seed, help="the seed of the test inputs, to use your own set")
    grade.add_argument(
        "--part", type=take.part, metavar="K/N", help="grade only the K-th of N fixed parts of the students, as 3/8"
    )
    grade.add_argument("--merge", action="store_true", help="join the parts that were graded with --part")
    grade.add_argument("--again", action="store_true", help="grade everything again")
    grade.add_argument("--flagged", action="store_true", help="grade again what is flagged")
    grade.add_argument(
        "--gradebook",
        type=take.words,
        metavar="DATABASE",
        help="nbgrader's database, for example sqlite:///gradebook.db",
    )
    grade.add_argument(
        "--csv", choices=("moodle", "canvas"), help="also write the table that this platform imports, into GRADES"
    )
    grade.add_argument(
        "--students",
        type=take.words,
        metavar="EXPORT.csv",
        help="the gradebook exported from that platform, to match students",
    )
    grade.add_argument(
        "--no-sandbox",
        action="store_true",
        help="run submissions with your own permissions: they can read, change and send whatever you can",
    )
    grade.set_defaults(run=_grade)


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
        from course_lib.grading.secret import BadSecret
        from course_lib.grading.submissions import BadSubmissions

        if options.explain:
            from course_lib.grading.protection import explain

            print(explain())
            return 0
        if options.submissions is None or options.out is None:
            raise BadUsage("grade: give SUBMISSIONS, a folder, and --out GRADES, a different one")
        if options.students and not options.csv:
            raise BadUsage("grade --students: say with --csv moodle or --csv canvas where the file comes from")
        if options.part and (options.merge or options.gradebook or options.csv):
            raise BadUsage("grade --part: --merge, --gradebook and --csv are for afterwards, when all parts are graded")
        if options.merge and (options.again or options.flagged):
            raise BadUsage("grade --merge: it runs no submission; give --again or --flagged with --part")
        given = {
            name: value for name, value in vars(options).items() if name not in ("run", "argv", "words", "explain")
        }
        try:
            print(grade(**given))
        except (BadSubmissions, BadStudents, BadSecret, NoSandbox, NoGradebook) as error:
            return complain(error, status=2)
    return 0
