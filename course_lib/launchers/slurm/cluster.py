"""A function on the nodes of a Slurm cluster: `launch(fn, ranks=16, on=slurm(nodes=2, gpus_per_node=8))`.

A small script of our own goes to `sbatch`. submitit would do that too, and its ports from the job's number are taken
from there, but it brings back one pickle per task when the task is over; a launch shows the ranks' output while they
run and asks them where they are when they do not end.

One process per node stands in for the notebook there: it starts the node's ranks exactly as a notebook starts its
own, and passes on what they say through a shared folder. So an error, a death or a hang is told as it is at home.
"""

from __future__ import annotations

import contextlib
import pickle
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.launchers.diagnosis.errors import Interrupted, LaunchError
from course_lib.launchers.process.listener import Listener
from course_lib.launchers.process.messages import STILL_HERE, LaunchSpec
from course_lib.launchers.run import Run
from course_lib.launchers.slurm.message_file import MessageFile
from course_lib.launchers.slurm.queue import SlurmJob, State

LOOK_EVERY = 0.1
SPEAK_EVERY = 5.0
LAST_WORDS = 2.0  # how long after a job's end its ranks' last messages may still arrive
START_WITHIN = 600.0  # a cold Python on a shared disk
GRACE = 1.0
LEAVE_WITHIN = 10.0
SIGNAL_BEFORE = 60  # seconds before a job's time is up, when it is told so; Slurm may do it up to a minute earlier


class BadPlace(ValueError):
    """A place that cannot run the ranks; the sentence says what to change."""


@dataclass(frozen=True)
class Slurm:
    """Where to run: so many ranks on each of so many nodes. `folder` must be one that all nodes see.

    `options` are further ones of `sbatch`, for example `["--constraint=a100", "--cpus-per-task=8"]`.
    """

    nodes: int = 2
    gpus_per_node: int = 8
    ranks_per_node: int | None = None  # None: one for each GPU
    time: str = "1:00:00"
    partition: str | None = None
    account: str | None = None
    folder: str = "slurm"
    options: Sequence[str] = ()
    peer_timeout: float | None = None  # seconds a rank waits for another; None: as long as PyTorch does

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise BadPlace(f"nodes={self.nodes}: a job needs at least one node")
        if self.gpus_per_node < 0:
            raise BadPlace(f"gpus_per_node={self.gpus_per_node}: give 0 or more")
        if self.local_ranks < 1:
            raise BadPlace(
                f"gpus_per_node={self.gpus_per_node} and ranks_per_node={self.ranks_per_node}: "
                "give ranks_per_node, 1 or more"
            )

    @property
    def local_ranks(self) -> int:
        """How many ranks a node has."""
        return self.gpus_per_node if self.ranks_per_node is None else self.ranks_per_node

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return self.nodes * self.local_ranks

    def check(self, ranks: int) -> None:
        """Refuse another number of ranks than fits the nodes."""
        if ranks != self.ranks:
            raise BadPlace(
                f"ranks={ranks}: {self.nodes} nodes with {self.local_ranks} ranks each are {self.ranks} ranks; "
                "change ranks, nodes or ranks_per_node"
            )

    def run(self, spec: LaunchSpec, timeout: float | None) -> Run:
        """Run a launch as a Slurm job and wait for it. Whatever happens, the job is gone when this returns."""
        with _private_folder(Path(self.folder)) as folder:
            (folder / "job").write_bytes(pickle.dumps((spec, self, sys.path)))
            for file in (*message_files(folder, self.nodes, attempt=0), orders(folder, attempt=0)):
                file.create()
            (folder / "job.sh").write_text(self.script(folder))
            submitted = SlurmJob.submit(folder / "job.sh")
            within = 0.0
            try:
                run = self._attempts(submitted, folder, spec.ranks, timeout)
                within = LEAVE_WITHIN
                return run
            except KeyboardInterrupt as error:
                when, where = (error.when, error.where) if isinstance(error, Interrupted) else ("", None)
                raise Interrupted(when, where, then=f"job {submitted.number} was cancelled") from None
            finally:
                submitted.end(within)

    def _attempts(self, submitted: SlurmJob, folder: Path, ranks: int, timeout: float | None) -> Run:
        """Watch the job, and after Slurm has put it back into the queue, watch it again."""
        attempt = submitted.wait_for_its_turn()
        while True:
            nodes = Nodes(submitted, folder, self, attempt)
            try:
                return Listener(nodes, ranks, timeout, start_within=START_WITHIN, grace=GRACE).result()
            except Requeued:
                print(f"[launch] job {submitted.number} was put back into the queue", flush=True)
                attempt = submitted.wait_for_its_turn(again=True)

    def script(self, folder: Path) -> str:
        """What `sbatch` gets."""
        options = [
            "--job-name=course",
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={self.local_ranks}",  # what the ranks need: one process starts those of a node
            f"--time={self.time}",
            f"--output={folder}/slurm.out",
            "--open-mode=append",
            "--requeue",
            f"--signal=USR1@{SIGNAL_BEFORE}",
        ]
        options += [f"--gpus-per-node={self.gpus_per_node}"] if self.gpus_per_node else []
        options += [f"--partition={self.partition}"] if self.partition else []
        options += [f"--account={self.account}"] if self.account else []
        lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in [*options, *self.options])]
        # Without these, Slurm would give the one process of a node no more than one rank's share of the cores.
        lines += ["unset SLURM_CPUS_PER_TASK SLURM_NTASKS_PER_NODE SLURM_NTASKS SLURM_NPROCS SLURM_TRES_PER_TASK"]
        srun = ["srun", f"--nodes={self.nodes}", f"--ntasks={self.nodes}", "--ntasks-per-node=1", "--cpu-bind=none"]
        python = [sys.executable, "-m", "course_lib.launchers.slurm.node", str(folder)]
        lines += [shlex.join([*srun, "--kill-on-bad-exit=1", *python]), "status=$?"]
        # Ranks that were told in time that it is nearly up have saved what they had: they go on in the next attempt.
        mark = shlex.quote(str(folder)) + '/stopped."${SLURM_RESTART_COUNT:-0}"'
        lines += [f'if [ -e {mark} ]; then scontrol requeue "$SLURM_JOB_ID"; fi', "exit $status", ""]
        return "\n".join(lines)


slurm = Slurm  # reads as a place: launch(fn, ranks=16, on=slurm(nodes=2))


def message_files(folder: Path, nodes: int, attempt: int) -> list[MessageFile]:
    """What each node says."""
    return [MessageFile(folder / f"node-{node}.{attempt}") for node in range(nodes)]


def orders(folder: Path, attempt: int) -> MessageFile:
    """What the nodes are told."""
    return MessageFile(folder / f"orders.{attempt}")


def stopped_mark(folder: Path, attempt: int) -> Path:
    """A file that is there when the ranks have saved what they had, and stopped before their time was up."""
    return folder / f"stopped.{attempt}"


class Requeued(Exception):
    """Slurm has taken the job off its nodes and will start it again."""


class Nodes:
    """The supervisors on all nodes, as `Listener` knows one: it asks for messages and gives orders."""

    def __init__(self, job: SlurmJob, folder: Path, place: Slurm, attempt: int) -> None:
        self.job, self.folder, self.place, self.attempt = job, folder, place, attempt
        self._message_files, self._orders = message_files(folder, place.nodes, attempt), orders(folder, attempt)
        self._messages: list[Any] = []
        self._spoke = 0.0
        self._ended: float | None = None

    def send(self, order: str) -> None:
        self._orders.append(order)

    def recv(self) -> Any:
        return self._messages.pop(0)

    def poll(self, seconds: float | None) -> bool:
        """Wait for a message, for at most `seconds`. Raises if the job has ended without one."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._messages:
            self._messages = [message for file in self._message_files for message in file.read()]
            if not self._messages:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                self._look_after_the_job()
                time.sleep(LOOK_EVERY)
        return True

    def _look_after_the_job(self) -> None:
        if time.monotonic() - self._spoke > SPEAK_EVERY:
            self._spoke = time.monotonic()
            self.send(STILL_HERE)
        state = self.job.state()
        if state.restarts > self.attempt or state.waits:
            raise Requeued
        if not state.has_ended:
            self._ended = None
        elif self._ended is None:
            self._ended = time.monotonic()
        elif time.monotonic() - self._ended > LAST_WORDS:
            raise LaunchError(self._story(state))

    def _story(self, state: State) -> str:
        number = self.job.number
        stories = {
            "TIMEOUT": f"job {number} ran out of time: give it more than time={self.place.time!r}",
            "CANCELLED": f"job {number} was cancelled, and not from here",
            "NODE_FAIL": f"job {number} ended because a node failed: run it again",
            "OUT_OF_MEMORY": f"job {number} ran out of memory: ask for more with options=['--mem=...']",
        }
        story = stories.get(state.name, f"job {number} ended ({state.name.lower()}) without a word from its ranks")
        output = self.folder / "slurm.out"
        tail = output.read_text(errors="replace").splitlines()[-15:] if output.exists() else []
        return "\n\n".join([story, *(["The end of its output:\n  " + "\n  ".join(tail)] if tail else [])])


@contextlib.contextmanager
def _private_folder(parent: Path) -> Iterator[Path]:
    """A folder for one launch that nobody else can read or write (0700), removed at the end."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=parent.resolve(), prefix="launch-"))
    except OSError as error:
        raise LaunchError(f"folder={str(parent)!r} cannot be written ({error.strerror}): give another one") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            parent.rmdir()  # if nothing else is in it
