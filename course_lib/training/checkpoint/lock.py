"""Only one job at a time may write into a folder of checkpoints. It leaves its name there.

    DIR/writer-1.lock    {"job": "Slurm job 12", "host": "n1", "process": 345, ...}

The lock is a file that can be created only once (O_EXCL). A process that finds it checks whether its writer is still
alive: on the same machine by looking up the process, from another machine by the file's time, which the training loop
renews. A process never removes a dead writer's lock, because it might remove the one that replaced it. Instead, the
next writer creates the file with the next number, and checks once more that it is alone.

Within a job, `on_rank_0` lets rank 0 act on the folder for all ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch.distributed as dist

from course_lib import machine
from course_lib.strategies.base import rank_and_ranks
from course_lib.training.checkpoint.folder import CheckpointError

LOCK = re.compile(r"writer-(\d+)\.lock")
RENEW_EVERY = 10.0  # seconds
GONE_AFTER = 900.0  # seconds without a renewal: an update, a save or a network hiccup may take a while
TRIES = 20
NAMED_WITHIN = 2.0  # seconds between creating a lock and writing the name in it


@dataclass(frozen=True)
class Writer:
    """A process that writes checkpoints."""

    job: str  # from Slurm or torchrun, if there is one
    restarts: int  # how often that job was restarted
    host: str
    machine: str  # the running system: on the same one, we can look up a process by its ID
    process: int
    began: str  # the process's start time, in system ticks: process IDs are reused
    token: str

    def __str__(self) -> str:
        return f"{self.job + ', ' if self.job else ''}process {self.process} on {self.host}"


@dataclass(frozen=True)
class Lock:
    """An existing lock; `writer` is None if the file cannot be read, or has no name yet."""

    path: Path
    number: int
    writer: Writer | None
    age: float  # seconds since it was renewed

    @property
    def holder(self) -> str:
        return str(self.writer) if self.writer else "a process that has not written its name"

    def is_held(self, by_others_than: Writer) -> bool:
        """Return whether the lock's writer is still alive. An earlier attempt of the same job counts as dead."""
        asking, writer = by_others_than, self.writer
        if writer is None:
            return self.age < GONE_AFTER
        if writer.job and writer.job == asking.job and writer.restarts < asking.restarts:
            return False
        if writer.machine and writer.machine == asking.machine:
            return _start_time(writer.process) == writer.began
        return self.age < GONE_AFTER


class WriterLock:
    """The right to write into a folder. `acquire_lock` returns it."""

    def __init__(self, path: Path, writer: Writer, made_folder: bool) -> None:
        self.path, self.writer, self.made_folder = path, writer, made_folder
        self._renewed = time.monotonic()

    def renew(self) -> None:
        """Signal that this writer is alive. Call it after every update."""
        if time.monotonic() - self._renewed >= RENEW_EVERY:
            self._renewed = time.monotonic()
            with contextlib.suppress(OSError):  # before any write, `check` finds out whether the lock is still ours
                os.utime(self.path)

    def check(self) -> None:
        """Raise if another writer has taken over the folder because this one seemed to be dead."""
        newest = max(_locks_in(self.path.parent), key=lambda lock: lock.number, default=None)
        if newest is None or newest.path != self.path or newest.writer != self.writer:
            by = f" by {newest.holder}" if newest else ""
            raise CheckpointError(
                f"{self.path.parent} was taken over{by} because this job stopped responding: it saves nothing more"
            )

    def release(self) -> None:
        """Release the folder, unless another writer has it. A folder that we created is removed if it is empty."""
        with contextlib.suppress(CheckpointError, OSError):
            self.check()
            for lock in _locks_in(self.path.parent):
                if lock.path != self.path:
                    lock.path.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            if self.made_folder:
                self.path.parent.rmdir()  # fails if it is not empty


def acquire_lock(folder: str | Path) -> tuple[WriterLock, str]:
    """Lock `folder`. Returns the lock and the dead writers it replaces; raises if a live writer has the folder."""
    folder, writer = Path(folder), this_writer()
    makes_folder = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(TRIES):
        before = _locks_in(folder)
        if any(lock.writer is None and lock.age < NAMED_WITHIN for lock in before):
            time.sleep(NAMED_WITHIN / TRIES)  # its writer is about to write its name
            continue
        _refuse_second_writer(folder, before, writer)
        path = folder / f"writer-{max((lock.number for lock in before), default=0) + 1}.lock"
        if not _create(path, writer):
            continue  # another writer was faster: find out which
        known_paths = {lock.path for lock in before}
        other_locks = [lock for lock in _locks_in(folder) if lock.path != path]
        if not any(lock.is_held(by_others_than=writer) or lock.path not in known_paths for lock in other_locks):
            return WriterLock(path, writer, makes_folder), ", ".join(lock.holder for lock in other_locks)
        path.unlink(missing_ok=True)
        time.sleep(random.random() * NAMED_WITHIN / TRIES)  # both writers may have backed off
    _refuse_second_writer(folder, _locks_in(folder), writer)
    raise CheckpointError(f"{folder} cannot be locked: other jobs are trying, too; try again")


def check_unlocked(folder: str | Path) -> None:
    """Raise if another process writes into `folder`, or may do so."""
    _refuse_second_writer(Path(folder), _locks_in(Path(folder)), this_writer())


def this_writer() -> Writer:
    """Return a description of this process."""
    job, restarts = "", 0
    if machine.started_by_torchrun():
        run = os.environ.get("TORCHELASTIC_RUN_ID", "")
        address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}"
        job = f"Slurm job {run}" if run and run == os.environ.get("SLURM_JOB_ID") else f"torchrun at {address}"
        restarts = machine.restarts()
    process = os.getpid()
    return Writer(job, restarts, socket.gethostname(), _machine(), process, _start_time(process), uuid4().hex)


def _refuse_second_writer(folder: Path, locks: list[Lock], writer: Writer) -> None:
    for lock in locks:
        if lock.is_held(by_others_than=writer):
            raise CheckpointError(
                f"{folder} is in use by {lock.holder} (last seen {lock.age:.0f} s ago): wait until it ends, or give "
                f"another folder; if you know that it is dead, remove {lock.path}"
            )


def _create(path: Path, writer: Writer) -> bool:
    """Create the file, and return whether this process created it."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with open(descriptor, "w") as file:
        json.dump(asdict(writer), file)
    return True


def _locks_in(folder: Path) -> list[Lock]:
    """Return all locks in the folder, with their ages by the file server's clock."""
    locks = []
    candidates = [(path, match) for path in _files(folder) if (match := LOCK.fullmatch(path.name))]
    now = _time_of_folder(folder) if candidates else 0.0
    for path, match in candidates:
        with contextlib.suppress(FileNotFoundError):  # it was just released
            age = max(0.0, now - path.stat().st_mtime)
            locks.append(Lock(path, int(match[1]), _read(path), age))
    return locks


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _time_of_folder(folder: Path) -> float:
    """Return the time by the clock of the folder's file system, because machines' clocks differ."""
    probe = folder / f"clock.{uuid4().hex}.tmp"
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        return now
    except OSError:
        return time.time()


def _read(path: Path) -> Writer | None:
    try:
        return Writer(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        return None


def _machine() -> str:
    """Return an ID for the running system and its PID namespace, within which a process ID identifies a process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname() if sys.platform == "darwin" else ""


def _start_time(process: int) -> str:
    """Return when a process started, in ticks since boot; empty if it does not exist or is a zombie."""
    if sys.platform == "darwin":
        return _is_alive(process)
    try:
        facts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if facts[0] in "ZX" else facts[19]


def _is_alive(process: int) -> str:
    """Return a fixed text if the process exists, or an empty one: on macOS we cannot read when it started."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass  # it belongs to another user
    return "at some time"


def on_rank_0(act: Callable[[], Any], group: dist.ProcessGroup | None = None) -> Any:
    """Return on every rank what `act` returns on rank 0. If it raises there, every rank raises.

    Ranks on several machines may see a shared folder in different states, so one rank looks for all of them.
    """
    answer: list[Any] = [None]
    if rank_and_ranks()[0] == 0:
        try:
            answer = [act()]
        except OSError as error:
            answer = [CheckpointError(f"the checkpoint cannot be written ({error}): check that the disk has room")]
        except CheckpointError as error:
            answer = [error]
    if dist.is_initialized():
        dist.broadcast_object_list(answer, group=group)
    if isinstance(answer[0], CheckpointError):
        raise answer[0]
    return answer[0]
