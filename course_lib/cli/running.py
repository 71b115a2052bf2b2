"""`course run`: run a function from a file on several ranks, on this machine or a Slurm cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from course_lib import machine
from course_lib.cli import arguments as types
from course_lib.cli.arguments import BadUsage, complain, detached, interrupted
from course_lib.launchers import Detached, LaunchError, Slurm, torchrun
from course_lib.launchers.local import MOST_RANKS
from course_lib.launchers.slurm import BadPlace
from course_lib.launchers.target import BadJob

SLURM_OPTIONS = (
    *("nodes", "gpus_per_node", "ranks_per_node", "cpus_per_rank", "memory"),
    *("time", "partition", "account", "sbatch"),
)


def add_cluster_options(command: argparse.ArgumentParser) -> None:
    """Add the options that say where a job runs."""
    help_ = "on several machines, seconds a rank waits for the others before it gives up; 0 waits forever"
    default = "default: PyTorch's, 10 to 30 minutes"
    command.add_argument("--peer-timeout", type=types.patience, metavar="SECONDS", help=f"{help_} ({default})")
    backend = "how GPUs communicate; ranks that share a GPU need a newer NCCL (default: NCCL where possible)"
    command.add_argument("--backend", choices=("nccl", "gloo"), help=backend)
    options = command.add_argument_group(
        "on a Slurm cluster", "wait in its queue, run on its nodes, show the output here"
    )
    options.add_argument("--slurm", action="store_true", help="submit a job; the options below determine --ranks")
    for name, kind, metavar, what in (
        ("nodes", types.count, "NODES", "how many (default: 2)"),
        ("gpus-per-node", types.whole_number(0, 1000), "GPUS", "default: 8; 0 for none"),
        ("ranks-per-node", types.count, "RANKS", "default: one per GPU"),
        ("cpus-per-rank", types.count, "CORES", "default: 4 with a GPU, otherwise 1"),
        ("memory", types.slurm_memory, "MEMORY", "per node, like 64G (default: the cluster's)"),
        ("time", types.slurm_time, "TIME", "the job's time limit (default: 1:00:00, an hour)"),
        ("partition", types.sbatch_word, "PARTITION", "default: the cluster's"),
        ("account", types.sbatch_word, "ACCOUNT", "default: yours"),
    ):
        options.add_argument(f"--{name}", type=kind, metavar=metavar, help=what)
    options.add_argument(
        "--sbatch", type=types.sbatch_word, action="append", metavar="OPTION", help="an extra option for sbatch"
    )


def choose_backend(options: argparse.Namespace) -> None:
    """Set the backend for this process's ranks; raise `BadUsage` if they cannot use it."""
    if not options.backend:
        return
    os.environ[machine.BACKEND] = options.backend
    if options.backend == "nccl" and not options.slurm:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", options.ranks or 2))
        if trouble := machine.why_not_nccl(ranks):
            raise BadUsage(f"--backend nccl: {trouble}")


def place_of(options: argparse.Namespace, command: Sequence[str] = ()) -> Slurm | None:
    """Return the cluster to run on, or None for this machine. Its nodes run `command`, unless a function is sent."""
    given = {name: value for name in SLURM_OPTIONS if (value := getattr(options, name)) is not None}
    if options.slurm:
        extra = given.pop("sbatch", [])
        place = Slurm(**given, options=extra, peer_timeout=options.peer_timeout, command=command)
        if options.ranks:
            place.check(options.ranks)
        return place
    if given:
        raise BadUsage(f"--{next(iter(given)).replace('_', '-')} is for a Slurm cluster; add --slurm, or leave it out")
    if (options.ranks or 0) > MOST_RANKS:
        raise BadUsage(f"--ranks {options.ranks}: give a number of ranks from 1 to {MOST_RANKS}; a cluster has room")
    return None


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add `course run`."""
    run = commands.add_parser(
        "run",
        help="run a function from a file on several ranks",
        usage="course run [OPTIONS] FILE.py:FUNCTION [NAME=VALUE ...] [-- WORD ...]",
        description="Run a function from a file on several ranks. Under torchrun, this process is one of its ranks. "
        "Everything after -- becomes sys.argv[1:], for a function that parses its own options: "
        "course run train.py:main --ranks 4 -- --lr 3",
    )
    run.add_argument("target", type=types.words, metavar="FILE.py:FUNCTION")
    run.add_argument("arguments", nargs="*", default=[], metavar="NAME=VALUE", help="arguments for the function")
    run.add_argument("--ranks", type=types.ranks, help="how many (default: 2; under torchrun, it decides)")
    run.add_argument("--timeout", type=types.seconds, default=60.0, help="seconds; 0 waits forever (default: 60)")
    run.add_argument("--timeline", type=types.picture, metavar="PICTURE.png", help="draw the recorded spans to a file")
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
