"""`course run`: a function from a file, on several ranks."""

from __future__ import annotations

import argparse

from course_lib.cli import arguments as take
from course_lib.cli.cluster import add_cluster_options, choose_backend, place_of
from course_lib.cli.endings import complain, detached, interrupted
from course_lib.launchers import Detached, LaunchError, torchrun
from course_lib.launchers.slurm import BadPlace
from course_lib.launchers.target import BadJob


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Run."""
    run = commands.add_parser(
        "run",
        help="run a function from a file on several ranks",
        usage="course run [OPTIONS] FILE.py:FUNCTION [NAME=VALUE ...] [-- WORD ...]",
        description="Run a function from a file on several ranks. Under torchrun, be one of its ranks. "
        "What stands behind -- is sys.argv[1:] there, for a function that reads options of its own: "
        "course run train.py:main --ranks 4 -- --lr 3",
    )
    run.add_argument("target", type=take.words, metavar="FILE.py:FUNCTION")
    run.add_argument("arguments", nargs="*", default=[], metavar="NAME=VALUE", help="arguments for the function")
    run.add_argument("--ranks", type=take.ranks, help="how many (default: 2; under torchrun, it decides)")
    run.add_argument("--timeout", type=take.seconds, default=60.0, help="seconds; 0 waits for ever (default: 60)")
    run.add_argument("--timeline", type=take.picture, metavar="PICTURE.png", help="draw the recorded spans into a file")
    add_cluster_options(run)
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        choose_backend(options)
        if torchrun.started_by_torchrun():
            run = torchrun.run_rank(
                options.target,
                options.arguments,
                peer_timeout=options.peer_timeout,
                record=options.timeline is not None,
                argv=options.argv,
            )
        else:
            place, timeout = place_of(options), options.timeout or None
            ranks = place.ranks if place else options.ranks or 2
            run = torchrun.run_job(
                options.target, options.arguments, ranks=ranks, timeout=timeout, on=place, argv=options.argv
            )
    except (BadPlace, BadJob) as error:
        return complain(error, status=2)
    except Detached as error:
        return detached(error)
    except LaunchError as error:
        return complain(error)
    except KeyboardInterrupt:
        return interrupted("; all ranks have been stopped")
    if run is not None:
        for rank, value in enumerate(run):
            print(f"rank {rank} returned {value!r}")
        print(f"{len(run)} {'rank' if len(run) == 1 else 'ranks'}, {run.seconds:.2f} s")
        if options.timeline:
            from course_lib import pictures

            pictures.timeline(run).save(options.timeline)
    return 0
