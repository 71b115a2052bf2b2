"""`course class`: a live view of a class on the instructor's machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.cli import arguments as take
from course_lib.cli.arguments import complain

if TYPE_CHECKING:
    from course_lib.classroom.server import Options


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course class`."""
    command = commands.add_parser(
        "class",
        help="teach a class: see live what learners believe, where they are and who is stuck",
        description="Teach a class: learners join with a code, and you see live what they believe, where they are and "
        "who is stuck. Everything is saved in a record; start again with the same record to continue the class.",
    )
    command.add_argument("--port", type=take.port, default=8899, help="the server's port (default: 8899)")
    command.add_argument(
        "--host",
        type=take.words,
        default="127.0.0.1",
        help="the address to listen on; 0.0.0.0 means all of this machine's (default: 127.0.0.1, this machine only)",
    )
    command.add_argument(
        "--record",
        type=take.output_file,
        default="class.db",
        metavar="FILE",
        help="the class's record (default: class.db)",
    )
    command.add_argument("--title", type=take.words, help="the class's title")
    command.add_argument("--tls", action="store_true", help="encrypt with a certificate made for this class")
    command.add_argument(
        "--address", type=take.words, metavar="URL", help="the address that learners use, if it is a proxy's"
    )
    command.add_argument("--anonymous", action="store_true", help="store no names: learners have numbers")
    command.add_argument("--no-browser", action="store_true", help="only print the addresses")
    command.add_argument("--hub", action="store_true", help="run as a JupyterHub service: see docs/deploy/jupyterhub")
    command.add_argument(
        "--group", type=take.words, default="learners", help="the Hub group that may join (default: learners)"
    )
    command.set_defaults(run=_hold)

    inside = command.add_subparsers(metavar="report")
    report = inside.add_parser(
        "report",
        help="after a class: a page and tables of what learners believed, tried and asked",
        description="Write a page (index.html) and two tables (learners.csv, questions.csv) from a class's record.",
    )
    report.add_argument("record", type=take.words, metavar="RECORD", help="the class's record")
    report.add_argument(
        "--out", type=take.words, required=True, metavar="FOLDER", help="where to write; created if needed"
    )
    report.set_defaults(run=_report)


def _hold(options: argparse.Namespace) -> int:
    from course_lib.classroom.server import BadAddress, Options, serve
    from course_lib.classroom.server.addresses import NoCertificate
    from course_lib.classroom.server.record import BadRecord

    given = {
        name: getattr(options, name) for name in ("port", "host", "record", "title", "tls", "anonymous", "address")
    }
    try:
        if options.hub:
            return _hold_in_hub(Options(**given, browser=False), options.group)
        return serve(Options(**given, browser=not options.no_browser))
    except (BadRecord, BadAddress) as error:
        return complain(error, status=2)
    except NoCertificate as error:
        return complain(error)


def _report(options: argparse.Namespace) -> int:
    from course_lib.classroom.report import write_report
    from course_lib.classroom.server.record import BadRecord

    try:
        write_report(Path(options.record), Path(options.out))
    except BadRecord as error:
        return complain(error, status=2)
    print(f"written: {Path(options.out) / 'index.html'}, learners.csv and questions.csv")
    return 0


def _hold_in_hub(options: Options, group: str) -> int:
    try:
        from course_lib.classroom.server.hub import NoHub, serve_in_hub
    except ModuleNotFoundError as error:
        return complain(f"--hub needs {error.name}, which is not installed: pip install -e '.[hub]'")
    try:
        return serve_in_hub(options, learners=group)
    except NoHub as error:
        return complain(error, status=2)
