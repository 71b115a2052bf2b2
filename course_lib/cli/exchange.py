"""`course release` and `course collect`: hand out exercises between two classes, and collect them."""

from __future__ import annotations

import argparse
from pathlib import Path

from course_lib.cli import arguments as take
from course_lib.cli.arguments import BadUsage, complain


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course release` and `course collect`."""
    release = commands.add_parser(
        "release",
        help="copy the exercises into folders, to hand out",
        description="Copy the exercises into FOLDER, with a folder for each lesson, to hand out. The command checks "
        "that none of them contains an answer.",
    )
    release.add_argument("folder", type=take.words, metavar="FOLDER")
    _add_lessons(release)
    release.set_defaults(run=_release)

    collect = commands.add_parser(
        "collect",
        help="collect a class's work, for `course grade`",
        description="Collect students' work from FOLDER. It contains a folder for each student (home folders, or a "
        "Moodle download), or files named as Canvas names them. Files collected earlier stay if they are newer.",
    )
    collect.add_argument("folder", type=take.words, metavar="FOLDER")
    collect.add_argument(
        "--into", type=take.words, required=True, metavar="SUBMISSIONS", help="the folder to give to `course grade`"
    )
    collect.add_argument(
        "--students", type=take.words, metavar="NAMES.txt", help="the names of the class, one per line"
    )
    _add_lessons(collect)
    collect.set_defaults(run=_collect)


def _add_lessons(command: argparse.ArgumentParser) -> None:
    command.add_argument("--lessons", type=take.words, nargs="+", default=[], metavar="02", help="only these lessons")


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
