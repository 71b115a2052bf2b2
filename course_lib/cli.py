"""The `course` command; `python -m course_lib` is the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from course_lib.launchers import LaunchError
from course_lib.launchers.local import MOST_RANKS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    # argparse takes no positional arguments behind an option: `course run f.py:g --ranks 2 steps=10`
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(options, "arguments")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.arguments += rest
    return options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="course", description="Train an LSTM on many GPUs: the course's commands.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="what this machine has, and what will therefore work")
    doctor.set_defaults(run=_doctor)

    lab = commands.add_parser("lab", help="open the course in JupyterLab")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.add_argument("--port", type=int, default=8888, help="first port to try (default: 8888)")
    lab.set_defaults(run=_lab)

    run = commands.add_parser(
        "run",
        help="run a function from a file on several ranks",
        description="Run a function from a file on several ranks. Under torchrun, be one of its ranks.",
    )
    run.add_argument("target", metavar="FILE.py:FUNCTION")
    run.add_argument("arguments", nargs="*", metavar="NAME=VALUE", help="arguments for the function")
    run.add_argument("--ranks", type=_ranks, default=2, help="how many (default: 2; under torchrun, it decides)")
    run.add_argument("--timeout", type=_seconds, default=60.0, help="seconds; 0 waits for ever (default: 60)")
    run.add_argument("--timeline", metavar="PICTURE.png", help="draw the recorded spans into a file")
    run.set_defaults(run=_run)
    return parser


def _doctor(_: argparse.Namespace) -> int:
    from course_lib.doctor import examine

    report = examine()
    print(report)
    return 0 if report.course_can_run else 1


def _lab(options: argparse.Namespace) -> int:
    from course_lib.lab import LabMissing, open_lab

    try:
        return open_lab(port=options.port, browser=not options.no_browser)
    except LabMissing as error:
        return _complain(error)


def _run(options: argparse.Namespace) -> int:
    from course_lib.launchers import job

    try:
        if job.started_by_torchrun():
            run = job.run_rank(options.target, options.arguments)
        else:
            timeout = options.timeout or None
            run = job.run_job(options.target, options.arguments, ranks=options.ranks, timeout=timeout)
    except (job.BadJob, LaunchError) as error:
        return _complain(error)
    except KeyboardInterrupt:
        print("course: interrupted; all ranks have been stopped", file=sys.stderr)
        return 130
    if run is not None:
        for rank, value in enumerate(run):
            print(f"rank {rank} returned {value!r}")
        print(f"{len(run)} {'rank' if len(run) == 1 else 'ranks'}, {run.seconds:.2f} s")
        if options.timeline:
            run.timeline().save(options.timeline)
    return 0


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text}: give a number of ranks from 1 to {MOST_RANKS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text}: give a number of seconds, or 0 to wait for ever")
    return seconds


def _complain(error: Exception) -> int:
    name = f"{type(error).__name__}: " if isinstance(error, LaunchError) else ""
    print(f"course: {name}{error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
