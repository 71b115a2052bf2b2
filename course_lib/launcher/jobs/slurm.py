"""Run a function on the nodes of a Slurm cluster: `launch(fn, ranks=16, on=slurm(nodes=2, gpus_per_node=8))`.

On each node, one process stands in for the notebook: it starts the node's ranks exactly as a notebook would, and
forwards their messages through a shared folder. So output, errors, crashes and hangs are reported as they are locally.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.launcher.hangs.errors import Detached, Interrupted, LaunchError
from course_lib.launcher.jobs.slurm_node import message_files, run_node
from course_lib.launcher.notebook.listener import Listener
from course_lib.launcher.notebook.run import Run
from course_lib.launcher.wire.messages import STILL_HERE, LaunchSpec
from course_lib.runtime.stop import REQUEUE

SIGNAL_BEFORE = 120  # seconds before the time limit at which Slurm signals the job; it may do so up to a minute earlier
INSIDE_JOB = "COURSE_LIB_SLURM_JOB"
FOLDER = "COURSE_LIB_SLURM_FOLDER"  # where the nodes of a watched job find their files


class BadPlace(ValueError):
    """The requested resources cannot run the ranks. The message says what to change."""


@dataclass(frozen=True)
class Slurm:
    """Where to run: the number of nodes, the ranks on each, and the resources they need. All nodes must see `folder`.

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
        if self.ranks < 1:
            asked = f"nodes={self.nodes}, gpus_per_node={self.gpus_per_node} and ranks_per_node={self.ranks_per_node}"
            raise BadPlace(f"{asked}: give nodes, 1 or more, and without GPUs also ranks_per_node, 1 or more")

    @property
    def local_ranks(self) -> int:
        """The number of ranks per node."""
        return self.gpus_per_node if self.ranks_per_node is None else self.ranks_per_node

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

    def is_here(self) -> bool:
        """Return whether this process already runs as a node of a Slurm job."""
        return INSIDE_JOB in os.environ and os.environ[INSIDE_JOB] == os.environ.get("SLURM_JOB_ID")

    def script(self, folder: Path | None = None) -> str:
        """Return the script for `sbatch`. `folder` is where a job that is watched from here finds its files."""
        per_rank = self.cpus_per_rank or (4 if self.gpus_per_node else 1)
        cores = per_rank * self.local_ranks
        command = ["course_lib", *self.command] if self.command else ["course_lib.launcher.jobs"]
        options = [
            "--job-name=course",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",  # the process that starts the node's ranks
            f"--cpus-per-task={cores}",
            *([f"--gpus-per-node={self.gpus_per_node}"] if self.gpus_per_node else []),
            *([f"--mem={self.memory}"] if self.memory else []),
            f"--time={self.time}",
            f"--signal=USR1@{SIGNAL_BEFORE}",  # goes to srun's processes; with B:, only to this script
            "--requeue",
            "--output=course-%j.out",
            "--open-mode=append",
            *([f"--partition={self.partition}"] if self.partition else []),
            *([f"--account={self.account}"] if self.account else []),
            *self.options,
        ]
        asked = "\n".join(f"#SBATCH {option}" for option in options)
        watched = f"export {FOLDER}={shlex.quote(str(folder))}\n" if folder else ""
        return f"""\
#!/bin/sh
{asked}

# A separate port for each job, so that jobs on the same node do not collide.
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# The command below runs as a node of this job, and does not submit another one.
export {INSIDE_JOB}=$SLURM_JOB_ID
{watched}# srun does not inherit the number of cores from sbatch.
srun --cpus-per-task={cores} --cpu-bind=none --wait=30 \\
  {shlex.join([sys.executable, "-m", *command])}
status=$?
# Time was nearly up, and the ranks have saved their state: continue in the next attempt.
if [ $status -eq {REQUEUE} ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
"""

    def run(self, spec: LaunchSpec, timeout: float | None) -> Run:
        """Run a launch as a Slurm job and wait for it, also after Slurm has requeued it.

        When this returns or raises, the job is gone, unless it raises `Detached`. If this process is a node of the job,
        run that node's ranks and exit.
        """
        if self.is_here():
            sys.exit(run_node(spec, self.nodes, self.peer_timeout, os.environ.get(FOLDER)))
        job = SlurmJob(self, spec)
        detached = Detached(
            f"job {job.number} keeps running, but is no longer watched: `squeue --job {job.number}` shows its state, "
            f"{job.output} has its ranks' output, and `scancel {job.number}` ends it"
        )
        try:
            while True:
                job.wait_for_its_turn()
                try:
                    run = Listener(job, spec.ranks, timeout, start_within=START_WITHIN, grace=GRACE).result()
                except Requeued:
                    print(f"[launch] job {job.number} was put back into the queue", flush=True)
                else:
                    job.end(LEAVE_WITHIN)
                    return run
        except KeyboardInterrupt as error:
            if not job.end():
                raise detached from None
            when, where = (error.when, error.where) if isinstance(error, Interrupted) else ("", None)
            raise Interrupted(when, where, then=f"job {job.number} was cancelled") from None
        except OSError as error:  # printing fails: the terminal is gone
            raise detached from error
        except BaseException:
            job.end()
            raise


slurm = Slurm  # so that calls read well: launch(fn, ranks=16, on=slurm(nodes=2))

START_WITHIN = 600.0  # starting Python from a shared disk with a cold cache is slow
GRACE = 1.0
LEAVE_WITHIN = 10.0
LOOK_EVERY = 0.1
ASK_EVERY = 1.0  # seconds: all users share the controller, so don't ask too often
SIGN_OF_LIFE_EVERY = 5.0
LAST_MESSAGES_WITHIN = 2.0  # how long after a job's end we still wait for its ranks' last messages
ENDS_WITHIN = 60.0  # after `scancel`; Slurm gives a process 30 s (KillWait)
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
ALIVE = WAITING | {"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING"}
# Reasons for pending that will never go away.
NEVER = re.compile(
    r"Partition(Config|NodeLimit|TimeLimit)|BadConstraints|Invalid(Account|QOS)|AccountNotAllowed|QOSNotAllowed"
)


class Requeued(Exception):
    """Slurm has requeued the job and will start it again."""


class SlurmJob:
    """A job that is submitted when this is created. To a `Listener`, it is the channel to the ranks on all its nodes.

    `squeue` forgets a job the moment it ends, and `sacct` (which submitit asks) needs a database that not every cluster
    has. So we get the state from `scontrol show job`, which remembers a job for a few minutes.
    """

    def __init__(self, place: Slurm, spec: LaunchSpec) -> None:
        try:
            Path(place.folder).mkdir(parents=True, exist_ok=True)
            # Only this user can access it.
            folder = tempfile.mkdtemp(dir=Path(place.folder).resolve(), prefix="launch-")
        except OSError as error:
            because = f"cannot be written to ({error.strerror}): give another"
            raise LaunchError(f"folder={place.folder!r} {because}") from error
        self.place, self.folder = place, Path(folder)
        self.state, self.reason, self.nodes, self.restarts, self.exit_code = "PENDING", "", "", 0, 0
        self._asked_at = self._sign_of_life_at = 0.0
        try:
            if not place.command:
                (self.folder / "job").write_bytes(pickle.dumps((spec, place, sys.path)))
            reports, orders = message_files(self.folder, place.nodes, attempt=0)
            for file in (*reports, orders):
                file.path.touch(mode=0o600)  # a new name may stay hidden on other nodes, so it exists before they start
            (self.folder / "job.sh").write_text(place.script(self.folder))
            submitted = slurm_command("sbatch", "--parsable", str(self.folder / "job.sh"))
            if submitted.returncode:
                last_line = submitted.stderr.strip().rpartition("\n")[2]
                complaint = last_line.removeprefix("sbatch: ").removeprefix("error: ")
                raise LaunchError(f"Slurm rejected the job: {complaint}. `sinfo` shows what the cluster has")
        except BaseException:
            self._remove_folder()
            raise
        self.number = submitted.stdout.strip().partition(";")[0]
        self.output = Path.cwd() / f"course-{self.number}.out"  # what its ranks print

    def ask(self) -> None:
        """Update what is known about the job, unless it is recent. If the controller does not answer, nothing changes.

        `state` is RUNNING, PENDING, FAILED or another state, `reason` what it waits for, and `restarts` how often Slurm
        has put it back into the queue.
        """
        if time.monotonic() - self._asked_at < ASK_EVERY:
            return
        result = slurm_command("scontrol", "--oneliner", "show", "job", self.number)
        self._asked_at = time.monotonic()
        if result.returncode == 0:
            facts = dict(re.findall(r"(\w+)=(\S*)", result.stdout))
            self.state, self.reason = facts.get("JobState", "FORGOTTEN"), facts.get("Reason", "")
            self.nodes, self.restarts = facts.get("NodeList", ""), int(facts.get("Restarts", 0))
            self.exit_code = int(facts.get("ExitCode", "0:0").partition(":")[0])
        elif "Invalid job id" in result.stderr:
            self.state = "FORGOTTEN"

    def wait_for_its_turn(self) -> None:
        """Wait until the job runs (or has run), printing what it waits for, and listen to this attempt of it."""
        shown = {"None", "", "(null)"}
        self.ask()
        while self.state in {*WAITING, "COMPLETING"}:  # a requeued job's previous attempt may be completing
            if NEVER.search(self.reason):
                raise LaunchError(
                    f"job {self.number} can never start: {self.reason}. Compare its nodes, time, partition and "
                    "account with what `sinfo` and `scontrol show partition` show"
                )
            if self.reason not in shown:
                shown.add(self.reason)
                print(f"[launch] job {self.number} is waiting: {self.reason}", flush=True)
            time.sleep(ASK_EVERY / 4)
            self.ask()
        print(f"[launch] job {self.number} runs on {self.nodes}; its output is also in {self.output.name}", flush=True)
        self.attempt, self._messages, self._ended_at = self.restarts, [], None
        self._reports, self._orders = message_files(self.folder, self.place.nodes, self.attempt)

    def send(self, order: Any) -> None:
        self._orders.append(order)

    def recv(self) -> Any:
        return self._messages.pop(0)

    def poll(self, seconds: float | None) -> bool:
        """Wait up to `seconds` for a message and return whether there is one. Raises if the job ended without one."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._messages:
            self._messages = [message for file in self._reports for message in file.read()]
            if not self._messages:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                self._check()
                time.sleep(LOOK_EVERY)
        return True

    def _check(self) -> None:
        """Tell the nodes that somebody listens. Raises if the job has been requeued, or has ended a while ago."""
        if time.monotonic() - self._sign_of_life_at > SIGN_OF_LIFE_EVERY:
            self._sign_of_life_at = time.monotonic()
            self.send(STILL_HERE)
        self.ask()
        if self.restarts > self.attempt or self.state in WAITING:
            raise Requeued
        self._ended_at = None if self.state in ALIVE else self._ended_at or time.monotonic()
        if self._ended_at is None or time.monotonic() - self._ended_at < LAST_MESSAGES_WITHIN:
            return
        why = {
            "TIMEOUT": f"ran out of time: give it more than time={self.place.time!r}",
            "CANCELLED": "was cancelled, but not by this program",
            "NODE_FAIL": "ended because a node failed: run it again",
            "OUT_OF_MEMORY": "ran out of memory: ask for more with memory='64G' (--memory 64G)",
        }.get(self.state, f"ended ({self.state.lower()}) without a report from its ranks")
        if self.exit_code == REQUEUE:
            why = "saved its state, but Slurm did not put it back into the queue: start it again"
        tail = self.output.read_text(errors="replace").splitlines()[-15:] if self.output.exists() else []
        end = "\n  ".join(["\n\nThe end of its output:", *tail]) if tail else ""
        raise LaunchError(f"job {self.number} {why}{end}")

    def end(self, within: float = 0.0) -> bool:
        """Wait up to `within` seconds for the job to end, then cancel it. Returns whether it has ended.

        If it has, removes its folder, and its output file, because the output has already been shown.
        """
        for patience in (within, ENDS_WITHIN):
            deadline = time.monotonic() + patience
            while self.state in ALIVE and time.monotonic() < deadline:
                time.sleep(LOOK_EVERY)
                self.ask()
            if self.state not in ALIVE:
                self.output.unlink(missing_ok=True)
                self._remove_folder()
                return True
            slurm_command("scancel", self.number)
        return False

    def _remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()  # fails if it is not empty


def slurm_command(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands, without the variables of an outer Slurm job: a notebook may run inside one."""
    if shutil.which(program) is None:
        raise LaunchError(
            f"there is no {program} here: call launch(on=slurm(...)) and `course ... --slurm` on a machine from which "
            "jobs are submitted (a login node), or leave out `on` to run on this machine"
        )
    outer_job = {name for name in os.environ if name.startswith("SLURM_")} - {"SLURM_CONF"} | {INSIDE_JOB}
    environment = {name: value for name, value in os.environ.items() if name not in outer_job}
    return subprocess.run([program, *arguments], capture_output=True, text=True, env=environment)
