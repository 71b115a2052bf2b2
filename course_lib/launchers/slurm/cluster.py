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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from course_lib.launchers.diagnosis.errors import Detached, Interrupted, LaunchError
from course_lib.launchers.process.listener import Listener
from course_lib.launchers.process.messages import LaunchSpec
from course_lib.launchers.run import Run
from course_lib.launchers.slurm.node import run_node
from course_lib.launchers.slurm.nodes import FOLDER, Nodes, Requeued, message_files, orders
from course_lib.launchers.slurm.queue import SlurmJob
from course_lib.launchers.slurm.script import BadPlace, Place, is_inside_job, make_script

__all__ = ["BadPlace", "Slurm", "slurm"]

START_WITHIN = 600.0  # starting Python from a shared disk with a cold cache is slow
GRACE = 1.0
LEAVE_WITHIN = 10.0


@dataclass(frozen=True)
class Slurm(Place):
    """Where to run: the number of nodes and of ranks per node. All nodes must see `folder`.

    `options` are additional options for `sbatch`, for example `["--constraint=a100", "--exclusive"]`.
    """

    def is_here(self) -> bool:
        """Return whether this process is already running as a node of such a job."""
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
            self._be_node(spec)
        with _private_folder(Path(self.folder)) as folder:
            if not self.command:
                (folder / "job").write_bytes(pickle.dumps((spec, self, sys.path)))
            for file in (*message_files(folder, self.nodes, attempt=0), orders(folder, attempt=0)):
                file.create()
            (folder / "job.sh").write_text(self.script(folder))
            submitted = SlurmJob.submit(folder / "job.sh", {FOLDER: str(folder)})
            return self._watch(submitted, folder, spec.ranks, timeout)

    def _be_node(self, spec: LaunchSpec) -> NoReturn:
        folder = os.environ.get(FOLDER)
        sys.exit(run_node(spec, self, Path(folder) if folder else None))

    def _watch(self, submitted: SlurmJob, folder: Path, ranks: int, timeout: float | None) -> Run:
        """Watch a job until it ends; if we stop watching before that, cancel it."""
        within, goes_on = 0.0, False
        try:
            with _detached_by_hangup():
                run = self._attempts(submitted, folder, ranks, timeout)
            within = LEAVE_WITHIN
            return run
        except KeyboardInterrupt as error:
            when, where = (error.when, error.where) if isinstance(error, Interrupted) else ("", None)
            if goes_on := not submitted.end():
                raise Detached(submitted.how_to_look()) from None
            raise Interrupted(when, where, then=f"job {submitted.number} was cancelled") from None
        except (Detached, OSError) as error:  # the terminal is gone, so nobody sees our output
            goes_on = True
            raise Detached(submitted.how_to_look()) from error
        finally:
            if not goes_on:
                submitted.end(within)

    def _attempts(self, submitted: SlurmJob, folder: Path, ranks: int, timeout: float | None) -> Run:
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
            f"folder={str(parent)!r} cannot be written ({error.strerror}): give a different one"
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
