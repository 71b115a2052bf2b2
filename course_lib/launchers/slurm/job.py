"""A Slurm job: the resources it requests, its script for `sbatch`, and its state in the queue.

`course train ... --slurm --print` shows the script. It needs only the `course` command and can be submitted by hand.

`squeue` forgets a job the moment it ends, and `sacct` needs a database that not every cluster has. So we get the state
from `scontrol show job`, which remembers a job for a few minutes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.launchers.diagnosis.errors import LaunchError
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
NODES_END_WITHIN = 30  # seconds within which all nodes must end after the first one has
INSIDE_JOB = "COURSE_LIB_SLURM_JOB"


def make_script(place: Place, command: Sequence[str]) -> str:
    """Return a script that runs `command` once on every node of `place`."""
    lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in _options(place)), ""]
    lines += [
        "# A separate port for each job, so that jobs on the same node do not collide.",
        f"export MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))",
        "# The command below runs as a node of this job, and does not submit another one.",
        f"export {INSIDE_JOB}=$SLURM_JOB_ID",
        "# srun does not inherit the number of cores from sbatch.",
        f"srun --cpus-per-task={place.cores * place.local_ranks} --cpu-bind=none --wait={NODES_END_WITHIN} \\",
        f"  {shlex.join(command)}",
        "status=$?",
        "# Time was nearly up, and the ranks have saved their state: continue in the next attempt.",
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


ASK_EVERY = 1.0  # seconds: all users share the controller, so don't ask too often
ENDS_WITHIN = 60.0  # after `scancel`; Slurm gives a process 30 s (KillWait)
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING"}
# Reasons for pending that will never go away.
NEVER = re.compile(
    r"Partition(Config|NodeLimit|TimeLimit)|BadConstraints|Invalid(Account|QOS)|AccountNotAllowed|QOSNotAllowed"
)


@dataclass(frozen=True)
class State:
    """What Slurm reports about a job."""

    name: str  # RUNNING, PENDING, FAILED ...
    reason: str = ""
    restarts: int = 0
    nodes: str = ""
    exit_code: int = 0  # of the job's script

    @property
    def waits(self) -> bool:
        return self.name in WAITING

    @property
    def has_ended(self) -> bool:
        return self.name not in WAITING | RUNNING


class SlurmJob:
    """One submitted job."""

    def __init__(self, number: str) -> None:
        self.number = number
        self.output = Path.cwd() / output_file(number)  # what its ranks print
        self._state = State("PENDING")
        self._asked_at = 0.0

    @classmethod
    def submit(cls, script: Path, variables: Mapping[str, str]) -> SlurmJob:
        """Submit a script, which Slurm runs with these variables in its environment, and return the job."""
        result = _slurm("sbatch", "--parsable", str(script), variables=variables)
        if result.returncode:
            raise LaunchError(f"Slurm rejected the job: {_complaint(result)}. `sinfo` shows what the cluster has")
        return cls(result.stdout.strip().partition(";")[0])

    def state(self, at_most_old: float = ASK_EVERY) -> State:
        """Return the job's state, at most a second old, or the last known one if the controller does not answer."""
        if time.monotonic() - self._asked_at >= at_most_old:
            result = _slurm("scontrol", "--oneliner", "show", "job", self.number)
            self._asked_at = time.monotonic()
            if result.returncode == 0:
                self._state = _parse(result.stdout)
            elif "Invalid job id" in result.stderr:
                self._state = State("FORGOTTEN")
        return self._state

    def wait_for_its_turn(self, again: bool = False) -> int:
        """Wait until the job runs (or has run), printing what it waits for. Returns how often Slurm has restarted it.

        The count of a requeued job goes up immediately, while its previous run is still `COMPLETING`.
        """
        shown_reason = ""
        while (state := self.state()).waits or (again and state.name == "COMPLETING"):
            if NEVER.search(state.reason):
                raise LaunchError(
                    f"job {self.number} can never start: {state.reason}. Compare its nodes, time, partition and "
                    "account with what `sinfo` and `scontrol show partition` show"
                )
            if state.reason not in (shown_reason, "None", ""):
                shown_reason = state.reason
                print(f"[launch] job {self.number} is waiting: {shown_reason}", flush=True)
            time.sleep(ASK_EVERY / 4)
        print(f"[launch] job {self.number} runs on {state.nodes}; its output is also in {self.output.name}", flush=True)
        return state.restarts

    def how_to_look(self) -> str:
        """Return a sentence about how to check on a job that is no longer watched."""
        return (
            f"job {self.number} keeps running, but is no longer watched: `squeue --job {self.number}` shows its state, "
            f"{self.output} has its ranks' output, and `scancel {self.number}` ends it"
        )

    def end(self, within: float = 0.0) -> bool:
        """Wait up to `within` seconds for the job to end, then cancel it. Returns whether it has ended.

        If it has, removes its output file, because the output has already been shown.
        """
        ended = self._ends_within(within)
        if not ended:
            _slurm("scancel", self.number)
            ended = self._ends_within(ENDS_WITHIN)
        if ended:
            with contextlib.suppress(OSError):
                self.output.unlink()
        return ended

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.state(at_most_old=0.0).has_ended:
            if time.monotonic() >= deadline:
                return False
            time.sleep(ASK_EVERY / 10)
        return True


def clean_environment() -> dict[str, str]:
    """Return the environment without the variables of an outer Slurm job: a notebook may run inside one."""
    outer_job = {name for name in os.environ if name.startswith("SLURM_")} - {"SLURM_CONF"} | {INSIDE_JOB}
    return {name: value for name, value in os.environ.items() if name not in outer_job}


def address_of_first_node(nodes: str) -> str:
    """Return the address that Slurm uses for the first of `nodes`, a node list such as `n[1-2]`."""
    first = _slurm("scontrol", "show", "hostnames", nodes).stdout.split()[0]
    address = re.search(r"NodeAddr=(\S+)", _slurm("scontrol", "--oneliner", "show", "node", first).stdout)
    return address[1] if address else first


def _slurm(
    program: str, *arguments: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    if shutil.which(program) is None:
        raise LaunchError(
            f"there is no {program} here: call launch(on=slurm(...)) and `course ... --slurm` on a machine from which "
            "jobs are submitted (a login node), or leave out `on` to run on this machine"
        )
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, env={**clean_environment(), **(variables or {})}
    )


def _complaint(result: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that sbatch printed to stderr, without its `sbatch: error: ` prefix."""
    lines = result.stderr.strip().splitlines() or [f"it ended with exit code {result.returncode}"]
    return lines[-1].removeprefix("sbatch: ").removeprefix("error: ")


def _parse(line: str) -> State:
    facts = dict(re.findall(r"(\w+)=(\S*)", line))
    restarts, nodes = int(facts.get("Restarts", 0)), facts.get("NodeList", "").replace("(null)", "")
    exit_code = int(facts.get("ExitCode", "0:0").partition(":")[0])
    return State(facts.get("JobState", "FORGOTTEN"), facts.get("Reason", ""), restarts, nodes, exit_code)
