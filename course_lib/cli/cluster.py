"""Where `course run` and `course train` run: this machine, or a Slurm cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from course_lib import machine
from course_lib.cli import arguments as take
from course_lib.cli.arguments import BadUsage
from course_lib.launchers import Slurm
from course_lib.launchers.local import MOST_RANKS

SLURM_OPTIONS = (
    *("nodes", "gpus_per_node", "ranks_per_node", "cpus_per_rank", "memory"),
    *("time", "partition", "account", "sbatch"),
)


def add_cluster_options(command: argparse.ArgumentParser) -> None:
    """The options that say where a job runs."""
    help_ = "on several machines, seconds a rank waits for the others before it gives up; 0 waits for ever"
    default = "default: PyTorch's, 10 to 30 minutes"
    command.add_argument("--peer-timeout", type=take.patience, metavar="SECONDS", help=f"{help_} ({default})")
    backend = "what GPUs talk over; ranks that share a GPU need a newer NCCL for it (default: NCCL where it can be)"
    command.add_argument("--backend", choices=("nccl", "gloo"), help=backend)
    options = command.add_argument_group("on a Slurm cluster", "wait in its queue, run on its nodes, show it here")
    options.add_argument("--slurm", action="store_true", help="submit it as a job; --ranks follows from what is below")
    for name, kind, metavar, what in (
        ("nodes", take.count, "NODES", "how many (default: 2)"),
        ("gpus-per-node", take.whole_number(0, 1000), "GPUS", "default: 8; 0 for none"),
        ("ranks-per-node", take.count, "RANKS", "default: one for each GPU"),
        ("cpus-per-rank", take.count, "CORES", "default: 4 beside a GPU, otherwise 1"),
        ("memory", take.slurm_memory, "MEMORY", "of a node, like 64G (default: what the cluster gives)"),
        ("time", take.slurm_time, "TIME", "the job ends after that; default: 1:00:00, an hour"),
        ("partition", take.sbatch_word, "PARTITION", "default: the cluster's"),
        ("account", take.sbatch_word, "ACCOUNT", "default: yours"),
    ):
        options.add_argument(f"--{name}", type=kind, metavar=metavar, help=what)
    options.add_argument(
        "--sbatch", type=take.sbatch_word, action="append", metavar="OPTION", help="one more option of sbatch"
    )


def choose_backend(options: argparse.Namespace) -> None:
    """Have this process's ranks talk over what was asked for; refuse it where they cannot."""
    if not options.backend:
        return
    os.environ[machine.BACKEND] = options.backend
    if options.backend == "nccl" and not options.slurm:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", options.ranks or 2))
        if trouble := machine.why_not_nccl(ranks):
            raise BadUsage(f"--backend nccl: {trouble}")


def place_of(options: argparse.Namespace, command: Sequence[str] = ()) -> Slurm | None:
    """Where to run, if it is not this machine; a node there runs `command`, if that is enough."""
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
