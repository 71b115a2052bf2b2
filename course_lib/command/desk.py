"""`course doctor` examines this machine; `course lab` and `course update` open and update the course on your desk."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from course_lib.clusters.links_picture import draw_link_matrix
from course_lib.command import arguments as types
from course_lib.command.arguments import BadUsage, complain, option, status_of
from course_lib.command.training import add_cluster_options, choose_backend, place_of
from course_lib.launcher.jobs import torchrun
from course_lib.launcher.notebook.launch import warm_up
from course_lib.runtime.interrupt import exiting_on_interrupt
from course_lib.runtime.machine import started_by_torchrun


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course doctor`, `course lab` and `course update`."""
    doctor = commands.add_parser(
        "doctor",
        help="show what this machine has and what will work on it; with --ranks, which rank is slow",
        description="Show what this machine has, what will work on it, and what to do about the rest. With --ranks, "
        "--slurm, or under torchrun: measure every rank's device, the links between all pairs, and an all-reduce "
        "against its prediction, and report which rank is slow. If one is, the exit status is 1.",
    )
    option(doctor, "--ranks", "how many to measure (under torchrun, set by torchrun)", types.ranks)
    option(doctor, "--out", "draw the matrix of links", types.picture, "PICTURE.png")
    add_cluster_options(doctor)
    doctor.set_defaults(run=_doctor)
    lab = commands.add_parser(
        "lab",
        help="open the course in JupyterLab",
        description="Open the course in JupyterLab, on a desk: your own folder with lessons and exercises, created if "
        "needed. What you write there is never overwritten.",
    )
    _add_desk(lab)
    option(lab, "--no-browser", "only print the address", bool)
    option(lab, "--port", "first port to try (default: 8888)", types.port, default=8888)
    option(lab, "--class", "join the class at this address", metavar="URL", dest="class_")
    option(lab, "--code", "the class's code (default: ask)")
    lab.add_argument("--name", help="the name that the class sees (default: ask)")
    lab.set_defaults(run=_lab)

    update = commands.add_parser(
        "update",
        help="update the course on your desk to the installed version",
        description="After you install or pull a newer version, update the lessons and exercises on your desk. Your "
        "answers and cells stay in them; what cannot be merged is saved in a file next to them.",
    )
    _add_desk(update)
    update.set_defaults(run=_update)


def _add_desk(command: argparse.ArgumentParser) -> None:
    help_ = "the folder that you work in (default: work, in the course's folder or in the current one)"
    option(command, "--desk", help_, metavar="FOLDER")


def _lab(options: argparse.Namespace) -> int:
    from course_lib.lab import open_lab

    if options.class_ is None and (options.code is not None or options.name is not None):
        raise BadUsage("--code and --name are for a class: give its address, too, with --class URL")
    join = partial(_join, options) if options.class_ is not None else None
    return open_lab(port=options.port, browser=not options.no_browser, desk=options.desk, join=join)


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
        raise BadUsage(f"{option} is missing: give {option}, or run this in a terminal, which asks for it")
    return input(question).strip()


def _update(options: argparse.Namespace) -> int:
    from course_lib.lab import update_desk

    print(update_desk(options.desk))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    if options.ranks or options.slurm or started_by_torchrun():
        return _examine_ranks(options)
    if options.out is not None:
        raise BadUsage("--out is for a measurement of ranks; add --ranks N")
    place_of(options)  # raises BadUsage for cluster options
    with exiting_on_interrupt():
        from course_lib.command.doctor import examine

    report = examine()
    print(report)
    return 0 if report.course_can_run else 1


def _examine_ranks(options: argparse.Namespace) -> int:
    prints = not started_by_torchrun() or torchrun.speak_as_rank() == 0
    try:
        choose_backend(options)
        place = place_of(options)
        if not started_by_torchrun() and not place:
            warm_up()  # the ranks' server imports torch while this process does
        with exiting_on_interrupt():
            from course_lib.clusters import health

        if started_by_torchrun():
            measured = health.examine_as_rank(options.peer_timeout)
        else:
            measured = health.examine_ranks(place.ranks if place else options.ranks, on=place)
    except ValueError as error:
        if prints:
            raise
        return status_of(error)  # rank 0 says the same
    except KeyboardInterrupt:
        return complain("interrupted; all ranks have been stopped", status=130) if prints else 130
    if measured is None:
        return 0
    print(health.health_text(measured))
    if options.out is not None:
        links = {pair: times.link for pair, times in measured.links.items()}
        draw_link_matrix(links, len(measured.ranks)).save(options.out)
    return 1 if health.slow_ranks(measured) else 0
