"""`course lab` and `course update`: the course in JupyterLab, on your own desk."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from course_lib.cli import arguments as take
from course_lib.cli.arguments import complain


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course lab` and `course update`."""
    lab = commands.add_parser(
        "lab",
        help="open the course in JupyterLab",
        description="Open the course in JupyterLab, on a desk: your own folder with lessons and exercises, created if "
        "needed. What you write there is never overwritten.",
    )
    _add_desk(lab)
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.add_argument("--port", type=take.port, default=8888, help="first port to try (default: 8888)")
    lab.add_argument("--class", dest="class_", type=take.words, metavar="URL", help="join the class at this address")
    lab.add_argument("--code", type=take.words, help="the class's code (default: ask)")
    lab.add_argument("--name", help="the name that the class sees (default: ask)")
    lab.set_defaults(run=_lab)

    update = commands.add_parser(
        "update",
        help="bring a newer course onto your desk",
        description="After you install or pull a newer version, update the lessons and exercises on your desk. Your "
        "answers and cells stay in them; what cannot be merged is saved in a file next to them.",
    )
    _add_desk(update)
    update.set_defaults(run=_update)


def _add_desk(command: argparse.ArgumentParser) -> None:
    help_ = "the folder that you work in (default: work, in the course's folder or in the current one)"
    command.add_argument("--desk", type=take.words, metavar="FOLDER", help=help_)


def _lab(options: argparse.Namespace) -> int:
    from course_lib.classroom.learner import CannotJoin
    from course_lib.lab import BadDesk, LabMissing, open_lab

    if options.class_ is None and (options.code is not None or options.name is not None):
        raise take.BadUsage("--code and --name are for a class: give its address, too, with --class URL")
    join = partial(_join, options) if options.class_ is not None else None
    try:
        return open_lab(port=options.port, browser=not options.no_browser, desk=options.desk, join=join)
    except BadDesk as error:
        return complain(error, status=2)
    except (LabMissing, CannotJoin) as error:
        return complain(error)


def _join(options: argparse.Namespace, folder: Path) -> str:
    """Join the class, and return the welcome message. A learner who has already joined is not asked again."""
    from course_lib.classroom.learner import is_member, join, welcome
    from course_lib.classroom.learner.joining import is_of_the_hub

    code, name = options.code or "", options.name or ""
    if not is_member(options.class_, folder):
        known_to_the_hub = is_of_the_hub(options.class_)
        code = code or ("" if known_to_the_hub else _ask("--code", "The class's code: "))
        if options.name is None and not known_to_the_hub and sys.stdin.isatty():
            name = _ask("--name", "The name that the class sees (Enter for none): ")
    return welcome(join(options.class_, code, name, folder=folder, stay=False))


def _ask(option: str, question: str) -> str:
    if not sys.stdin.isatty():
        raise take.BadUsage(f"{option} is missing: give {option}, or run this in a terminal, which asks for it")
    return input(question).strip()


def _update(options: argparse.Namespace) -> int:
    from course_lib.lab import BadDesk, update_desk

    try:
        print(update_desk(options.desk))
    except BadDesk as error:
        return complain(error, status=2)
    return 0
