"""`course doctor`: what this machine has, and with ranks, how fast each one is."""

from __future__ import annotations

import argparse
import os

from course_lib.cli import arguments as take
from course_lib.cli.arguments import BadUsage, complain, interrupted
from course_lib.cli.running import add_cluster_options, choose_backend, place_of
from course_lib.launchers import LaunchError, torchrun, warm_up
from course_lib.launchers.slurm import BadPlace
from course_lib.launchers.torchrun import leaving_at_once


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course doctor`."""
    doctor = commands.add_parser(
        "doctor",
        help="show what this machine has and what will work on it; with --ranks, which rank is slow",
        description="Show what this machine has, what will work on it, and what to do about the rest. With --ranks, "
        "--slurm, or under torchrun: measure every rank's device, the links between all pairs, an all-reduce against "
        "its prediction, reads of your data and the machines' clocks, and report which rank is slow. If one is, the "
        "exit status is 1.",
    )
    doctor.add_argument("--ranks", type=take.ranks, help="how many to measure (under torchrun, it decides)")
    data = "time each rank reading its part of these files, twice"
    doctor.add_argument("--data", type=take.words, metavar="FILE|FOLDER", help=data)
    doctor.add_argument("--out", type=take.picture, metavar="PICTURE.png", help="draw the matrix of links")
    add_cluster_options(doctor)
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    if options.ranks or options.slurm or torchrun.started_by_torchrun():
        return _examine_ranks(options)
    for name in ("data", "out"):
        if getattr(options, name) is not None:
            raise BadUsage(f"--{name} is for a measurement of ranks; add --ranks N")
    place_of(options)  # raises BadUsage for cluster options
    return _examine_machine()


def _examine_machine() -> int:
    with leaving_at_once():
        from course_lib.doctor import examine

    report = examine()
    print(report)
    return 0 if report.course_can_run else 1


def _examine_ranks(options: argparse.Namespace) -> int:
    under_torchrun = torchrun.started_by_torchrun()
    speaks = not under_torchrun or torchrun.speak_as_rank() == 0
    try:
        choose_backend(options)
        place = place_of(options)
        if options.data is not None and not place:
            _check_data(options.data)
        if not under_torchrun and not place:
            warm_up()  # imports torch in the background, while this process does
        with leaving_at_once():
            from course_lib.doctor import health
            from course_lib.doctor.health import complaints
            from course_lib.doctor.tables import health_text

        plan = health.Plan(data=options.data)
        if under_torchrun:
            found = health.examine_as_rank(plan, options.peer_timeout)
        else:
            found = health.examine_ranks(plan, place.ranks if place else options.ranks, on=place)
    except BadPlace as error:
        return complain(error, status=2) if speaks else 2
    except LaunchError as error:
        return complain(error)
    except KeyboardInterrupt:
        return interrupted("; all ranks have been stopped") if speaks else 130
    if found is None:
        return 0
    print(health_text(found))
    if options.out is not None:
        from course_lib import pictures

        pictures.link_matrix({pair: times.link for pair, times in found.links.items()}, len(found.ranks)).save(
            options.out
        )
    return 1 if complaints(found) else 0


def _check_data(path: str) -> None:
    """Raise `BadUsage` now, before ranks start, if no rank of this machine could read the data."""
    if not os.path.isdir(path) and not os.path.isfile(path):
        raise BadUsage(f"--data {path}: there is no such file or folder; give the one that the ranks will read")
    if not os.access(path, os.R_OK):
        raise BadUsage(
            f"--data {path}: you have no permission to read it; give a different one, or change its permissions"
        )
