"""The nodes of a running job, as seen by the command that watches it: through files, and through Slurm.

In the shared folder, each sender has a file that only it appends to. NFS guarantees close-to-open consistency: a
process that opens a file after the writer has closed it sees the new content. But a new *name* in a folder may stay
hidden for a minute, because NFS caches the folder. So both sides reopen the files each time, the files exist before the
other side looks for them, and nothing is ever renamed. A reader leaves an incomplete message for later.
"""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

from course_lib.launchers.diagnosis.errors import LaunchError
from course_lib.launchers.process.orders import STILL_HERE
from course_lib.launchers.process.stop import REQUEUE
from course_lib.launchers.slurm.queue import SlurmJob, State
from course_lib.launchers.slurm.script import Place

SIZE_BYTES = 8


class MessageFile:
    """The messages from one side, in order. That side calls `append`; the other calls `read`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def create(self) -> None:
        self.path.touch(mode=0o600)

    def append(self, *messages: Any) -> None:
        """Send messages. When this returns, the other side can read them."""
        packed = [pickle.dumps(message) for message in messages]
        with self.path.open("ab") as file:
            file.write(b"".join(len(data).to_bytes(SIZE_BYTES, "big") + data for data in packed))

    def read(self) -> list[Any]:
        """Return the messages since the last call."""
        # Unpickling can run code. Only the user and root can write to this folder (0700).
        if not self.path.exists():
            return []
        messages = []
        with self.path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            while self._position + SIZE_BYTES <= end:
                file.seek(self._position)
                size = int.from_bytes(file.read(SIZE_BYTES), "big")
                if self._position + SIZE_BYTES + size > end:
                    break
                messages.append(pickle.loads(file.read(size)))
                self._position += SIZE_BYTES + size
        return messages


LOOK_EVERY = 0.1
SPEAK_EVERY = 5.0
LAST_WORDS = 2.0  # how long after a job's end we still wait for its ranks' last messages
FOLDER = "COURSE_LIB_SLURM_FOLDER"  # tells the nodes of a watched job where these files are


def message_files(folder: Path, nodes: int, attempt: int) -> list[MessageFile]:
    """Return the files with the messages from each node."""
    return [MessageFile(folder / f"node-{node}.{attempt}") for node in range(nodes)]


def orders(folder: Path, attempt: int) -> MessageFile:
    """Return the file with the orders to the nodes."""
    return MessageFile(folder / f"orders.{attempt}")


class Requeued(Exception):
    """Slurm has requeued the job and will start it again."""


class Nodes:
    """The supervisors on all nodes, presented to `Listener` as a single channel."""

    def __init__(self, job: SlurmJob, folder: Path, place: Place, attempt: int) -> None:
        self.job, self.place, self.attempt = job, place, attempt
        self._message_files, self._orders = message_files(folder, place.nodes, attempt), orders(folder, attempt)
        self._messages: list[Any] = []
        self._spoke = 0.0
        self._ended: float | None = None

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
            "CANCELLED": f"job {number} was cancelled, but not by this program",
            "NODE_FAIL": f"job {number} ended because a node failed: run it again",
            "OUT_OF_MEMORY": f"job {number} ran out of memory: ask for more with memory='64G' (--memory 64G)",
        }
        story = stories.get(state.name, f"job {number} ended ({state.name.lower()}) without a word from its ranks")
        if state.exit_code == REQUEUE:
            story = f"job {number} saved its state, but Slurm did not put it back into the queue: start it again"
        output = self.job.output
        tail = output.read_text(errors="replace").splitlines()[-15:] if output.exists() else []
        return "\n\n".join([story, *(["The end of its output:\n  " + "\n  ".join(tail)] if tail else [])])
