"""Run a function on the nodes of a Slurm cluster: `launch(fn, ranks=16, on=slurm(nodes=2, gpus_per_node=8))`.

We submit a small script to `sbatch`. submitit would do that too (deriving ports from the job id is its idea), but it
returns one pickle per task when the task is over. A launch shows the ranks' output while they run, and asks them where
they are if they do not finish.

On each node, one process stands in for the notebook: it starts the node's ranks exactly as a notebook would, and
forwards their messages through a shared folder. So errors, crashes and hangs are reported as they are locally.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.launchers.diagnosis.errors import Detached, Interrupted, LaunchError
from course_lib.launchers.process.listener import Listener
from course_lib.launchers.process.messages import STILL_HERE, LaunchSpec
from course_lib.launchers.process.stop import REQUEUE
from course_lib.launchers.run import Run
from course_lib.launchers.slurm.job import BadPlace, Place, SlurmJob, State, is_inside_job, make_script
from course_lib.launchers.slurm.node import message_files, orders, run_node

__all__ = ["BadPlace", "Slurm", "slurm"]

START_WITHIN = 600.0  # starting Python from a shared disk with a cold cache is slow
GRACE = 1.0
LEAVE_WITHIN = 10.0
LOOK_EVERY = 0.1
SIGN_OF_LIFE_EVERY = 5.0
LAST_MESSAGES_WITHIN = 2.0  # how long after a job's end we still wait for its ranks' last messages
FOLDER = "COURSE_LIB_SLURM_FOLDER"  # where the nodes of a watched job find their files


@dataclass(frozen=True)
class Slurm(Place):
    """Where to run: the number of nodes and of ranks per node. All nodes must see `folder`.

    `options` are additional options for `sbatch`, for example `["--constraint=a100", "--exclusive"]`.
    """

    def is_here(self) -> bool:
        """Return whether this process is already running as a node of a Slurm job."""
        return is_inside_job()

    def script(self, folder: str | Path = "FOLDER") -> str:
        """Return the script for `sbatch`. `folder` holds the function, if one is sent to the nodes."""
        if self.command:
            return make_script(self, [sys.executable, "-m", "course_lib", *self.command])
        return make_script(self, [sys.executable, "-m", "course_lib.launchers.slurm", str(folder)])

    def run(self, spec: LaunchSpec, timeout: float | None) -> Run:
        """Run a launch as a Slurm job and wait for it. When this returns, the job is gone, except after a hang-up.

        If this process is a node of the job, run that node's ranks and exit.
        """
        if self.is_here():
            node_folder = os.environ.get(FOLDER)
            sys.exit(run_node(spec, self, Path(node_folder) if node_folder else None))
        with _private_folder(Path(self.folder)) as folder:
            if not self.command:
                (folder / "job").write_bytes(pickle.dumps((spec, self, sys.path)))
            for file in (*message_files(folder, self.nodes, attempt=0), orders(folder, attempt=0)):
                file.create()
            (folder / "job.sh").write_text(self.script(folder))
            submitted = SlurmJob.submit(folder / "job.sh", {FOLDER: str(folder)})
            return self._watch(submitted, folder, spec.ranks, timeout)

    def _watch(self, submitted: SlurmJob, folder: Path, ranks: int, timeout: float | None) -> Run:
        """Watch a job until it ends. If we stop before that, cancel it, unless it was detached."""
        within, keeps_running = 0.0, False
        try:
            with _detached_by_hangup():
                run = self._watch_attempts(submitted, folder, ranks, timeout)
            within = LEAVE_WITHIN
            return run
        except KeyboardInterrupt as error:
            when, where = (error.when, error.where) if isinstance(error, Interrupted) else ("", None)
            if keeps_running := not submitted.end():
                raise Detached(submitted.how_to_look()) from None
            raise Interrupted(when, where, then=f"job {submitted.number} was cancelled") from None
        except (Detached, OSError) as error:  # the terminal is gone
            keeps_running = True
            raise Detached(submitted.how_to_look()) from error
        finally:
            if not keeps_running:
                submitted.end(within)

    def _watch_attempts(self, submitted: SlurmJob, folder: Path, ranks: int, timeout: float | None) -> Run:
        """Watch the job, and watch it again each time Slurm requeues it."""
        attempt = submitted.wait_for_its_turn()
        while True:
            nodes = Nodes(submitted, folder, self, attempt)
            try:
                return Listener(nodes, ranks, timeout, start_within=START_WITHIN, grace=GRACE).result()
            except Requeued:
                print(f"[launch] job {submitted.number} was put back into the queue", flush=True)
                attempt = submitted.wait_for_its_turn(again=True)


slurm = Slurm  # so that calls read well: launch(fn, ranks=16, on=slurm(nodes=2))


class Requeued(Exception):
    """Slurm has requeued the job and will start it again."""


class Nodes:
    """The supervisors on all nodes, presented to `Listener` as a single channel."""

    def __init__(self, job: SlurmJob, folder: Path, place: Place, attempt: int) -> None:
        self.job, self.place, self.attempt = job, place, attempt
        self._message_files, self._orders = message_files(folder, place.nodes, attempt), orders(folder, attempt)
        self._messages: list[Any] = []
        self._last_sign_of_life = 0.0
        self._ended_at: float | None = None

    def send(self, order: Any) -> None:
        self._orders.append(order)

    def recv(self) -> Any:
        return self._messages.pop(0)

    def poll(self, seconds: float | None) -> bool:
        """Wait up to `seconds` for a message and return whether there is one. Raises if the job ended without one."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._messages:
            self._messages = [message for file in self._message_files for message in file.read()]
            if not self._messages:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                self._check_job()
                time.sleep(LOOK_EVERY)
        return True

    def _check_job(self) -> None:
        if time.monotonic() - self._last_sign_of_life > SIGN_OF_LIFE_EVERY:
            self._last_sign_of_life = time.monotonic()
            self.send(STILL_HERE)
        state = self.job.state()
        if state.restarts > self.attempt or state.waits:
            raise Requeued
        if not state.has_ended:
            self._ended_at = None
        elif self._ended_at is None:
            self._ended_at = time.monotonic()
        elif time.monotonic() - self._ended_at > LAST_MESSAGES_WITHIN:
            raise LaunchError(self._explain_end(state))

    def _explain_end(self, state: State) -> str:
        number = self.job.number
        explanations = {
            "TIMEOUT": f"job {number} ran out of time: give it more than time={self.place.time!r}",
            "CANCELLED": f"job {number} was cancelled, but not by this program",
            "NODE_FAIL": f"job {number} ended because a node failed: run it again",
            "OUT_OF_MEMORY": f"job {number} ran out of memory: ask for more with memory='64G' (--memory 64G)",
        }
        ended = f"job {number} ended ({state.name.lower()}) without a report from its ranks"
        explanation = explanations.get(state.name, ended)
        if state.exit_code == REQUEUE:
            explanation = f"job {number} saved its state, but Slurm did not put it back into the queue: start it again"
        output = self.job.output
        tail = output.read_text(errors="replace").splitlines()[-15:] if output.exists() else []
        return "\n\n".join([explanation, *(["The end of its output:\n  " + "\n  ".join(tail)] if tail else [])])


@contextlib.contextmanager
def _detached_by_hangup() -> Iterator[None]:
    """Raise `Detached` inside the block when the terminal or connection is lost (SIGHUP), except under `nohup`."""
    hangup = getattr(signal, "SIGHUP", None)
    in_charge = threading.current_thread() is threading.main_thread()
    if hangup is None or not in_charge or signal.getsignal(hangup) is not signal.SIG_DFL:
        yield
        return

    def detach(*_: object) -> None:
        signal.signal(hangup, signal.SIG_IGN)
        raise Detached("hung up")

    signal.signal(hangup, detach)
    try:
        yield
    finally:
        signal.signal(hangup, signal.SIG_DFL)


@contextlib.contextmanager
def _private_folder(parent: Path) -> Iterator[Path]:
    """Yield a folder for one launch that only this user can access (0700), removed at the end of the job."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=parent.resolve(), prefix="launch-"))
    except OSError as error:
        raise LaunchError(
            f"folder={str(parent)!r} cannot be written to ({error.strerror}): give another folder"
        ) from error
    try:
        yield folder
    except Detached:
        raise  # the nodes still need it
    except BaseException:
        _remove(folder)
        raise
    _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # fails if it is not empty
