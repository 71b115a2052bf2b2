"""`course lab` and `course update`: the course in JupyterLab, on a desk of your own."""

from __future__ import annotations

import argparse

from course_lib.cli import arguments as take
from course_lib.cli.endings import complain


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Lab and update."""
    lab = commands.add_parser(
        "lab",
        help="open the course in JupyterLab",
        description="Open the course in JupyterLab, on a desk: a folder of your own, with lessons and exercises. It "
        "is made if there is none. What you write there is never overwritten.",
    )
    _add_desk(lab)
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.add_argument("--port", type=take.port, default=8888, help="first port to try (default: 8888)")
    lab.set_defaults(run=_lab)

    update = commands.add_parser(
        "update",
        help="bring a newer course onto your desk",
        description="After a newer version was installed or pulled: renew the lessons and exercises on your desk. Your "
        "answers and cells stay in them; what cannot be put together is kept in a file beside.",
    )
    _add_desk(update)
    update.set_defaults(run=_update)


def _add_desk(command: argparse.ArgumentParser) -> None:
    help_ = "the folder that you work in (default: work, in the course's folder or where you are)"
    command.add_argument("--desk", type=take.words, metavar="FOLDER", help=help_)


def _lab(options: argparse.Namespace) -> int:
    from course_lib.lab import BadDesk, LabMissing, open_lab

    try:
        return open_lab(port=options.port, browser=not options.no_browser, desk=options.desk)
    except BadDesk as error:
        return complain(error, status=2)
    except LabMissing as error:
        return complain(error)


def _update(options: argparse.Namespace) -> int:
    from course_lib.lab import BadDesk, update_desk

    try:
        print(update_desk(options.desk))
    except BadDesk as error:
        return complain(error, status=2)
    return 0
