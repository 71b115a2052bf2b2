"""Run a function on the nodes of a Slurm cluster: `launch(fn, ranks=16, on=slurm(nodes=2, gpus_per_node=8))`.

On each node, one process stands in for the notebook: it starts the node's ranks exactly as a notebook would, and
forwards their messages through a shared folder. So output, errors, crashes and hangs are reported as they are locally.
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
from pathlib import Path
from typing import Any

from course_lib.launchers.diagnosis.errors import Detached, Interrupted, LaunchError
from course_lib.launchers.process.listener import Listener
from course_lib.launchers.process.messages import STILL_HERE, LaunchSpec
from course_lib.launchers.process.stop import REQUEUE
from course_lib.launchers.run import Run
from course_lib.launchers.slurm.job import INSIDE_JOB, Place, SlurmJob, make_script
from course_lib.launchers.slurm.node import message_files, run_node

START_WITHIN = 600.0  # starting Python from a shared disk with a cold cache is slow
GRACE = 1.0
LEAVE_WITHIN = 10.0
LOOK_EVERY = 0.1
SIGN_OF_LIFE_EVERY = 5.0
LAST_MESSAGES_WITHIN = 2.0  # how long after a job's end we still wait for its ranks' last messages
FOLDER = "COURSE_LIB_SLURM_FOLDER"  # where the nodes of a watched job find their files


class Slurm(Place):
    """Where to run: `launch(fn, ranks=16, on=slurm(nodes=2, gpus_per_node=8))`."""

    def is_here(self) -> bool:
        """Return whether this process already runs as a node of a Slurm job."""
        return INSIDE_JOB in os.environ and os.environ[INSIDE_JOB] == os.environ.get("SLURM_JOB_ID")

    def script(self, folder: str | Path = "FOLDER") -> str:
        """Return the script for `sbatch`. `folder` holds the function, if one is sent to the nodes."""
        command = ["course_lib", *self.command] if self.command else ["course_lib.launchers.slurm", str(folder)]
        return make_script(self, [sys.executable, "-m", *command])

    def run(self, spec: LaunchSpec, timeout: float | None) -> Run:
        """Run a launch as a Slurm job and wait for it. When this returns, the job is gone, except after a hang-up.

        If this process is a node of the job, run that node's ranks and exit.
        """
        if self.is_here():
            node_folder = os.environ.get(FOLDER)
            sys.exit(run_node(spec, self, Path(node_folder) if node_folder else None))
        try:
            parent = Path(self.folder)
            parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=parent.resolve(), prefix="launch-"))  # only this user can access it
        except OSError as error:
            raise LaunchError(
                f"folder={self.folder!r} cannot be written to ({error.strerror}): give another"
            ) from error
        keep = False
        try:
            (folder / "job").write_bytes(pickle.dumps((None if self.command else spec, self, sys.path)))
            reports, orders = message_files(folder, self.nodes, attempt=0)
            for file in (*reports, orders):
                file.path.touch(mode=0o600)  # a new name may stay hidden on other nodes, so it exists before they start
            (folder / "job.sh").write_text(self.script(folder))
            return self._watch(SlurmJob(folder / "job.sh", {FOLDER: str(folder)}), folder, spec.ranks, timeout)
        except Detached:
            keep = True  # the nodes still need the folder
            raise
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
                with contextlib.suppress(OSError):
                    parent.rmdir()  # fails if it is not empty

    def _watch(self, job: SlurmJob, folder: Path, ranks: int, timeout: float | None) -> Run:
        """Watch a job, also after Slurm has requeued it. If we stop before it ends, cancel it, unless we hung up."""
        within, keeps_running = 0.0, False
        detached = Detached(
            f"job {job.number} keeps running, but is no longer watched: `squeue --job {job.number}` shows its state, "
            f"{job.output} has its ranks' output, and `scancel {job.number}` ends it"
        )
        try:
            with _detached_by_hangup():
                job.wait_for_its_turn()
                while True:
                    try:
                        nodes = Nodes(job, folder, self)
                        run = Listener(nodes, ranks, timeout, start_within=START_WITHIN, grace=GRACE).result()
                        within = LEAVE_WITHIN
                        return run
                    except Requeued:
                        print(f"[launch] job {job.number} was put back into the queue", flush=True)
                        job.wait_for_its_turn(again=True)
        except KeyboardInterrupt as error:
            when, where = (error.when, error.where) if isinstance(error, Interrupted) else ("", None)
            if keeps_running := not job.end():
                raise detached from None
            raise Interrupted(when, where, then=f"job {job.number} was cancelled") from None
        except (Detached, OSError) as error:  # the terminal is gone
            keeps_running = True
            raise detached from error
        finally:
            if not keeps_running:
                job.end(within)


slurm = Slurm  # so that calls read well: launch(fn, ranks=16, on=slurm(nodes=2))


class Requeued(Exception):
    """Slurm has requeued the job and will start it again."""


class Nodes:
    """The supervisors on all nodes, presented to `Listener` as a single channel, for one attempt of the job."""

    def __init__(self, job: SlurmJob, folder: Path, place: Place) -> None:
        self.job, self.place, self.attempt = job, place, job.restarts
        self._reports, self._orders = message_files(folder, place.nodes, self.attempt)
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
            self._messages = [message for file in self._reports for message in file.read()]
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
        job = self.job
        job.ask()
        if job.restarts > self.attempt or job.waits():
            raise Requeued
        self._ended_at = (self._ended_at or time.monotonic()) if job.has_ended() else None
        if self._ended_at is None or time.monotonic() - self._ended_at < LAST_MESSAGES_WITHIN:
            return
        explanations = {
            "TIMEOUT": f"job {job.number} ran out of time: give it more than time={self.place.time!r}",
            "CANCELLED": f"job {job.number} was cancelled, but not by this program",
            "NODE_FAIL": f"job {job.number} ended because a node failed: run it again",
            "OUT_OF_MEMORY": f"job {job.number} ran out of memory: ask for more with memory='64G' (--memory 64G)",
        }
        ended = f"job {job.number} ended ({job.name.lower()}) without a report from its ranks"
        text = explanations.get(job.name, ended)
        if job.exit_code == REQUEUE:
            text = f"job {job.number} saved its state, but Slurm did not put it back into the queue: start it again"
        tail = job.output.read_text(errors="replace").splitlines()[-15:] if job.output.exists() else []
        raise LaunchError("\n  ".join([f"{text}\n\nThe end of its output:", *tail]) if tail else text)


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
