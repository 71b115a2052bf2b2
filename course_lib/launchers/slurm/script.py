"""The resources a job requests from a Slurm cluster, and the script for `sbatch`.

`course train ... --slurm --print` shows the script. It needs only the `course` command and can be submitted by hand.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.launchers.process.stop import REQUEUE

CORES_BESIDE_A_GPU = 4  # one for the rank, the others for data loading


class BadPlace(ValueError):
    """The requested resources cannot run the ranks. The message says what to change."""


@dataclass(frozen=True)
class Place:
    """The number of nodes, the ranks on each, and the resources they need."""

    nodes: int = 2
    gpus_per_node: int = 8
    ranks_per_node: int | None = None  # None: one per GPU
    cpus_per_rank: int | None = None  # None: 4 with GPUs, otherwise 1
    memory: str | None = None  # per node, for example "64G"; None: the cluster's default
    time: str = "1:00:00"
    partition: str | None = None
    account: str | None = None
    folder: str = "slurm"
    options: Sequence[str] = ()
    peer_timeout: float | None = None  # seconds a rank waits for a peer; None: PyTorch's default
    command: Sequence[str] = ()  # the `course` arguments that a node runs; empty if a function is sent instead

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise BadPlace(f"nodes={self.nodes}: a job needs at least one node")
        if self.gpus_per_node < 0:
            raise BadPlace(f"gpus_per_node={self.gpus_per_node}: give 0 or more")
        if self.cores < 1:
            raise BadPlace(f"cpus_per_rank={self.cpus_per_rank}: give 1 or more")
        if self.local_ranks < 1:
            raise BadPlace(
                f"gpus_per_node={self.gpus_per_node} and ranks_per_node={self.ranks_per_node}: "
                "give ranks_per_node, 1 or more"
            )

    @property
    def local_ranks(self) -> int:
        """The number of ranks per node."""
        return self.gpus_per_node if self.ranks_per_node is None else self.ranks_per_node

    @property
    def cores(self) -> int:
        """The number of cores per rank."""
        default = CORES_BESIDE_A_GPU if self.gpus_per_node else 1
        return default if self.cpus_per_rank is None else self.cpus_per_rank

    @property
    def ranks(self) -> int:
        """The total number of ranks."""
        return self.nodes * self.local_ranks

    def check(self, ranks: int) -> None:
        """Raise if the number of ranks does not match the nodes."""
        if ranks != self.ranks:
            raise BadPlace(
                f"ranks={ranks}: {self.nodes} nodes with {self.local_ranks} ranks each are {self.ranks} ranks; "
                "change ranks, nodes or ranks_per_node"
            )


SIGNAL_BEFORE = 120  # seconds before the time limit at which Slurm signals the job; it may do so up to a minute earlier
FIRST_PORT, PORTS = 20_000, 10_000
ENDS_WITHIN = 30  # seconds within which all nodes must end after the first one has
INSIDE_JOB = "COURSE_LIB_SLURM_JOB"


def make_script(place: Place, command: Sequence[str]) -> str:
    """Return a script that runs `command` once on every node of `place`."""
    lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in _options(place)), ""]
    lines += [
        "# A port of this job's own: jobs that share a node do not collide.",
        f"export MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))",
        "# The command below runs as a node of this job, and does not submit another one.",
        f"export {INSIDE_JOB}=$SLURM_JOB_ID",
        "# srun does not take the number of cores over from sbatch.",
        f"srun --cpus-per-task={place.cores * place.local_ranks} --cpu-bind=none --wait={ENDS_WITHIN} \\",
        f"  {shlex.join(command)}",
        "status=$?",
        "# The time was nearly up, and the ranks have saved what they had: go on in the next attempt.",
        f'if [ $status -eq {REQUEUE} ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
        "exit $status",
        "",
    ]
    return "\n".join(lines)


def output_file(number: str) -> str:
    """Return the name of a job's output file, which is in the folder from which the job was submitted."""
    return f"course-{number}.out"


def is_inside_job() -> bool:
    """Return whether a job's script started this process as one of its nodes."""
    return INSIDE_JOB in os.environ and os.environ[INSIDE_JOB] == os.environ.get("SLURM_JOB_ID")


def _options(place: Place) -> list[str]:
    return [
        "--job-name=course",
        f"--nodes={place.nodes}",
        "--ntasks-per-node=1",  # the process that starts the node's ranks
        f"--cpus-per-task={place.cores * place.local_ranks}",
        *([f"--gpus-per-node={place.gpus_per_node}"] if place.gpus_per_node else []),
        *([f"--mem={place.memory}"] if place.memory else []),
        f"--time={place.time}",
        f"--signal=USR1@{SIGNAL_BEFORE}",  # goes to srun's processes; with B:, only to this script
        "--requeue",
        f"--output={output_file('%j')}",
        "--open-mode=append",
        *([f"--partition={place.partition}"] if place.partition else []),
        *([f"--account={place.account}"] if place.account else []),
        *place.options,
    ]
