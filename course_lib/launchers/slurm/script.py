"""The script that `sbatch` gets: what a job asks for, and what runs on its nodes.

`course train ... --slurm --print` shows it. It needs nothing but the `course` command and can be submitted by hand.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from course_lib.launchers.process.stop import REQUEUE
from course_lib.launchers.slurm.place import Place

SIGNAL_BEFORE = 60  # seconds before a job's time is up, when it is told so; Slurm may do it up to a minute earlier
FIRST_PORT, PORTS = 20_000, 10_000
ENDS_WITHIN = 30  # seconds after the first node has ended, in which the others must
INSIDE_JOB = "COURSE_LIB_SLURM_JOB"


def make_script(place: Place, command: Sequence[str]) -> str:
    """A script that runs `command` once on every node of `place`."""
    lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in _options(place)), ""]
    lines += [
        "# A port of this job's own: jobs that share a node do not collide.",
        f"export MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))",
        "# The command below runs as a node of this job, and does not submit another one.",
        f"export {INSIDE_JOB}=$SLURM_JOB_ID",
        "# Otherwise the one process of a node would get one rank's share of the cores.",
        "unset SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_NTASKS_PER_NODE SLURM_NTASKS SLURM_NPROCS "
        "SLURM_TRES_PER_TASK",
        f"srun --nodes={place.nodes} --ntasks={place.nodes} --ntasks-per-node=1 --cpu-bind=none "
        f"--wait={ENDS_WITHIN} \\",
        f"  {shlex.join(command)}",
        "status=$?",
        "# The time was nearly up, and the ranks have saved what they had: go on in the next attempt.",
        f'if [ $status -eq {REQUEUE} ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
        "exit $status",
        "",
    ]
    return "\n".join(lines)


def output_file(number: str) -> str:
    """The name of the file that has what a job's ranks print, in the folder from which it was submitted."""
    return f"course-{number}.out"


def is_inside_job() -> bool:
    """Whether this process was started by the script of a job, to be one of its nodes."""
    return INSIDE_JOB in os.environ and os.environ[INSIDE_JOB] == os.environ.get("SLURM_JOB_ID")


def _options(place: Place) -> list[str]:
    return [
        "--job-name=course",
        f"--nodes={place.nodes}",
        f"--ntasks-per-node={place.local_ranks}",  # what the ranks need: one process starts those of a node
        f"--cpus-per-task={place.cores}",
        *([f"--gpus-per-node={place.gpus_per_node}"] if place.gpus_per_node else []),
        *([f"--mem={place.memory}"] if place.memory else []),
        f"--time={place.time}",
        f"--signal=USR1@{SIGNAL_BEFORE}",  # to what srun has started; with B: it would be to this script alone
        "--requeue",
        f"--output={output_file('%j')}",
        "--open-mode=append",
        *([f"--partition={place.partition}"] if place.partition else []),
        *([f"--account={place.account}"] if place.account else []),
        *place.options,
    ]
