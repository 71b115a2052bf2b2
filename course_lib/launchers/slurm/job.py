"""A Slurm job: the resources it requests, its script for `sbatch`, and its state in the queue.

`squeue` forgets a job the moment it ends, and `sacct` (which submitit asks) needs a database that not every cluster
has. So we get the state from `scontrol show job`, which remembers a job for a few minutes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.launchers.diagnosis.errors import LaunchError
from course_lib.launchers.process.stop import REQUEUE

SIGNAL_BEFORE = 120  # seconds before the time limit at which Slurm signals the job; it may do so up to a minute earlier
INSIDE_JOB = "COURSE_LIB_SLURM_JOB"


class BadPlace(ValueError):
    """The requested resources cannot run the ranks. The message says what to change."""


@dataclass(frozen=True)
class Place:
    """The number of nodes, the ranks on each, and the resources they need. All nodes must see `folder`.

    `options` are additional options for `sbatch`, for example `["--constraint=a100", "--exclusive"]`.
    """

    nodes: int = 2
    gpus_per_node: int = 8
    ranks_per_node: int | None = None  # None: one per GPU
    cpus_per_rank: int | None = None  # None: 4 with GPUs (one for the rank, the others load data), otherwise 1
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
            asked = f"gpus_per_node={self.gpus_per_node} and ranks_per_node={self.ranks_per_node}"
            raise BadPlace(f"{asked}: give ranks_per_node, 1 or more")

    @property
    def local_ranks(self) -> int:
        """The number of ranks per node."""
        return self.gpus_per_node if self.ranks_per_node is None else self.ranks_per_node

    @property
    def cores(self) -> int:
        """The number of cores per rank."""
        default = 4 if self.gpus_per_node else 1
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


def make_script(place: Place, command: Sequence[str]) -> str:
    """Return a script for `sbatch` that runs `command` once on every node of `place`."""
    cores = place.cores * place.local_ranks
    options = [
        "--job-name=course",
        f"--nodes={place.nodes}",
        "--ntasks-per-node=1",  # the process that starts the node's ranks
        f"--cpus-per-task={cores}",
        *([f"--gpus-per-node={place.gpus_per_node}"] if place.gpus_per_node else []),
        *([f"--mem={place.memory}"] if place.memory else []),
        f"--time={place.time}",
        f"--signal=USR1@{SIGNAL_BEFORE}",  # goes to srun's processes; with B:, only to this script
        "--requeue",
        "--output=course-%j.out",
        "--open-mode=append",
        *([f"--partition={place.partition}"] if place.partition else []),
        *([f"--account={place.account}"] if place.account else []),
        *place.options,
    ]
    asked = "\n".join(f"#SBATCH {option}" for option in options)
    return f"""\
#!/bin/sh
{asked}

# A separate port for each job, so that jobs on the same node do not collide.
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# The command below runs as a node of this job, and does not submit another one.
export {INSIDE_JOB}=$SLURM_JOB_ID
# srun does not inherit the number of cores from sbatch.
srun --cpus-per-task={cores} --cpu-bind=none --wait=30 \\
  {shlex.join(command)}
status=$?
# Time was nearly up, and the ranks have saved their state: continue in the next attempt.
if [ $status -eq {REQUEUE} ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
"""


ASK_EVERY = 1.0  # seconds: all users share the controller, so don't ask too often
ENDS_WITHIN = 60.0  # after `scancel`; Slurm gives a process 30 s (KillWait)
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING"}
# Reasons for pending that will never go away.
NEVER = re.compile(
    r"Partition(Config|NodeLimit|TimeLimit)|BadConstraints|Invalid(Account|QOS)|AccountNotAllowed|QOSNotAllowed"
)


class SlurmJob:
    """A job that is submitted when this is created. `variables` are added to the script's environment."""

    def __init__(self, script: Path, variables: dict[str, str]) -> None:
        result = slurm_command("sbatch", "--parsable", str(script), **variables)
        if result.returncode:
            said = result.stderr.strip().splitlines() or [f"it ended with exit code {result.returncode}"]
            complaint = said[-1].removeprefix("sbatch: ").removeprefix("error: ")
            raise LaunchError(f"Slurm rejected the job: {complaint}. `sinfo` shows what the cluster has")
        self.number = result.stdout.strip().partition(";")[0]
        self.output = Path.cwd() / f"course-{self.number}.out"  # what its ranks print
        self.name, self.reason, self.nodes, self.restarts, self.exit_code = "PENDING", "", "", 0, 0
        self._asked_at = 0.0

    def ask(self, at_most_old: float = ASK_EVERY) -> None:
        """Update what is known about the job, unless it is recent. If the controller does not answer, nothing changes.

        `name` is RUNNING, PENDING, FAILED or another state, `reason` what it waits for, and `restarts` how often Slurm
        has put it back into the queue.
        """
        if time.monotonic() - self._asked_at < at_most_old:
            return
        result = slurm_command("scontrol", "--oneliner", "show", "job", self.number)
        self._asked_at = time.monotonic()
        if result.returncode == 0:
            facts = dict(re.findall(r"(\w+)=(\S*)", result.stdout))
            self.name, self.reason = facts.get("JobState", "FORGOTTEN"), facts.get("Reason", "")
            self.nodes, self.restarts = facts.get("NodeList", ""), int(facts.get("Restarts", 0))
            self.exit_code = int(facts.get("ExitCode", "0:0").partition(":")[0])
        elif "Invalid job id" in result.stderr:
            self.name = "FORGOTTEN"

    def waits(self) -> bool:
        return self.name in WAITING

    def has_ended(self) -> bool:
        return self.name not in WAITING | RUNNING

    def wait_for_its_turn(self, again: bool = False) -> None:
        """Wait until the job runs (or has run), printing what it waits for.

        The count of a requeued job's restarts goes up immediately, while its previous run is still `COMPLETING`.
        """
        shown = ("None", "", "(null)")
        self.ask()
        while self.waits() or (again and self.name == "COMPLETING"):
            if NEVER.search(self.reason):
                raise LaunchError(
                    f"job {self.number} can never start: {self.reason}. Compare its nodes, time, partition and "
                    "account with what `sinfo` and `scontrol show partition` show"
                )
            if self.reason not in shown:
                shown = (*shown[:3], self.reason)
                print(f"[launch] job {self.number} is waiting: {self.reason}", flush=True)
            time.sleep(ASK_EVERY / 4)
            self.ask()
        print(f"[launch] job {self.number} runs on {self.nodes}; its output is also in {self.output.name}", flush=True)

    def end(self, within: float = 0.0) -> bool:
        """Wait up to `within` seconds for the job to end, then cancel it. Returns whether it has ended.

        If it has, removes its output file, because the output has already been shown.
        """
        for patience in (within, ENDS_WITHIN):
            deadline = time.monotonic() + patience
            self.ask(at_most_old=0.0)
            while not self.has_ended() and time.monotonic() < deadline:
                time.sleep(ASK_EVERY / 10)
                self.ask(at_most_old=0.0)
            if self.has_ended():
                self.output.unlink(missing_ok=True)
                return True
            slurm_command("scancel", self.number)
        return False


def clean_environment() -> dict[str, str]:
    """Return the environment without the variables of an outer Slurm job: a notebook may run inside one."""
    outer_job = {name for name in os.environ if name.startswith("SLURM_")} - {"SLURM_CONF"} | {INSIDE_JOB}
    return {name: value for name, value in os.environ.items() if name not in outer_job}


def slurm_command(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands with these variables added to the environment."""
    if shutil.which(program) is None:
        raise LaunchError(
            f"there is no {program} here: call launch(on=slurm(...)) and `course ... --slurm` on a machine from which "
            "jobs are submitted (a login node), or leave out `on` to run on this machine"
        )
    return subprocess.run([program, *arguments], capture_output=True, text=True, env=clean_environment() | variables)
