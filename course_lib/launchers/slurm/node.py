"""One node of a Slurm job: starts its ranks as a notebook would, and relays messages between them and the submitter.

    srun --ntasks-per-node=1 python -m course_lib.launchers.slurm FOLDER
    srun --ntasks-per-node=1 python -m course_lib train ... --slurm ...

Shortly before the job's time is up, Slurm sends SIGUSR1. Ranks that then save their state and stop are not reported as
done: the node exits with a status that makes the job's script requeue the job. What the ranks print is also written to
the job's output file.

In the shared folder, each sender has a file that only it appends to. NFS guarantees close-to-open consistency: a
process that opens a file after the writer has closed it sees the new content. But a new *name* in a folder may stay
hidden for a minute, because NFS caches the folder. So both sides reopen the files each time, the files exist before the
other side looks for them, and nothing is ever renamed. A reader leaves an incomplete message for later.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from course_lib.launchers.diagnosis.errors import RankDied, RankFailed
from course_lib.launchers.local import supervisor_of
from course_lib.launchers.process import stop
from course_lib.launchers.process.messages import (
    STILL_HERE,
    Channel,
    Died,
    LaunchSpec,
    Lines,
    Raised,
    Rendezvous,
    Returned,
    Stop,
    SupervisorFailed,
)
from course_lib.launchers.process.progress_bar import Bar, parse_report
from course_lib.launchers.slurm.job import Place, address_of_first_node

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


def message_files(folder: Path, nodes: int, attempt: int) -> list[MessageFile]:
    """Return the files with the messages from each node."""
    return [MessageFile(folder / f"node-{node}.{attempt}") for node in range(nodes)]


def orders(folder: Path, attempt: int) -> MessageFile:
    """Return the file with the orders to the nodes."""
    return MessageFile(folder / f"orders.{attempt}")


class NodeLog:
    """Prints the ranks' lines with a rank prefix, the progress every ten seconds, and the ranks' failures."""

    def __init__(self) -> None:
        self.faults = 0
        self._bar = Bar(sys.stdout)

    def write(self, text: str) -> None:
        """Print a line and flush."""
        print(text, flush=True)

    def add(self, messages: Iterable[Any]) -> None:
        """Print the messages that belong in the log."""
        for message in messages:
            match message:
                case Lines(rank, lines):
                    self._add_lines(rank, lines)
                case Raised(rank):
                    self._add_fault(RankFailed(f"{message.type_name}: {message.text}", rank=rank, stack=message.stack))
                case Died(rank):
                    self._add_fault(RankDied(rank=rank, exitcode=message.exitcode, stack=message.stack))
                case SupervisorFailed(text):
                    self._add_fault(text)

    def _add_lines(self, rank: int, lines: list[str]) -> None:
        for line in lines:
            if progress := parse_report(line):
                self._bar.show(progress)
            else:
                self.write(f"[rank {rank}] {line}")

    def _add_fault(self, fault: object) -> None:
        self.faults += 1
        self.write(f"[launch] {fault}")


LOOK_EVERY = 0.05
# Ranks that are done wait to be dismissed, because others may still need them. If the watcher, which would dismiss
# them, is silent for this many seconds, we assume that it is gone: the job ends when its ranks do, and frees its nodes.
GONE_AFTER = 60.0
LINGER = 1.0  # seconds for other nodes to read what was sent to them


def main(folder: Path) -> int:
    """Run this node's ranks of the function in `folder` until they end. Returns the exit status."""
    spec, place, sys.path[:] = pickle.loads((folder / "job").read_bytes())
    return run_node(spec, place, folder)


def run_node(spec: LaunchSpec, place: Place, folder: Path | None) -> int:
    """Run this node's ranks until they end. Returns the exit status, which is `REQUEUE` if they were stopped.

    A watcher reads the messages in `folder`; None means that there is no watcher.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm signals every process on a node, and children inherit this
    node, attempt = int(os.environ["SLURM_NODEID"]), int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    spec = _spec_of_node(spec, place, node, attempt)
    os.chdir(spec.folder)
    watcher = Watcher(message_files(folder, place.nodes, attempt)[node], orders(folder, attempt)) if folder else None
    with (
        supervisor_of(spec) as supervisor,
        stop.asked_by_signals("SIGUSR1"),
        stop.request.passed_on(lambda reason: supervisor.send(Stop(reason))),
    ):
        return _pass_on(supervisor, spec, watcher)


def _spec_of_node(spec: LaunchSpec, place: Place, node: int, attempt: int) -> LaunchSpec:
    """Return the spec for the ranks of one node, with the environment that Slurm gives them."""
    rendezvous = Rendezvous(
        address=address_of_first_node(os.environ["SLURM_JOB_NODELIST"]),
        port=int(os.environ["MASTER_PORT"]),
        job=os.environ["SLURM_JOB_ID"],
        restarts=attempt,
        peer_timeout=place.peer_timeout,
    )
    here = range(node * place.local_ranks, (node + 1) * place.local_ranks)
    return replace(spec, here=here, rendezvous=rendezvous, environment=dict(os.environ))


class Watcher:
    """The process that submitted the job and watches it, as seen from a node."""

    def __init__(self, reports: MessageFile, orders: MessageFile) -> None:
        self._reports, self._orders = reports, orders
        self._last_order_at = time.monotonic()
        self.is_there = True

    def send(self, messages: list[Any]) -> None:
        """Forward messages from the ranks."""
        if messages:
            self._reports.append(*map(_in_wall_time, messages))

    def new_orders(self) -> list[Any]:
        """Return the new orders for the ranks."""
        orders = self._orders.read()
        if orders:
            self._last_order_at = time.monotonic()
        was_there, self.is_there = self.is_there, time.monotonic() - self._last_order_at < GONE_AFTER
        if was_there and not self.is_there:
            print("[launch] this job is no longer watched; it keeps running", flush=True)
        return [order for order in orders if order != STILL_HERE]


def _pass_on(supervisor: Channel, spec: LaunchSpec, watcher: Watcher | None) -> int:
    """Forward messages in both directions until the ranks are dismissed, or done with no watcher left.

    Returns the exit status: `REQUEUE` if a signal asked the ranks to stop and all of them stopped early.
    """
    log = NodeLog()
    finished: set[int] = set()
    stopped: set[int] = set()
    while (watcher and watcher.is_there) or not (log.faults or len(finished) == len(spec.here)):
        try:
            messages = _receive(supervisor)
        except (EOFError, ConnectionError):
            break
        if stop.request.reason:
            stopped |= {message.rank for message in messages if isinstance(message, Returned) and message.stopped}
            messages = [message for message in messages if getattr(message, "rank", None) not in stopped]
        if len(stopped) == len(spec.here):
            log.write(f"[launch] stopped by {stop.request.reason}; the ranks have saved their state")
            time.sleep(LINGER)
            return stop.REQUEUE
        finished |= {message.rank for message in messages if isinstance(message, (Returned, Raised, Died))}
        log.add(messages)
        if watcher:
            watcher.send(messages)
            for order in watcher.new_orders():
                supervisor.send(order)
    if log.faults:
        return 1
    time.sleep(LINGER)
    return 0


def _receive(supervisor: Channel) -> list[Any]:
    """Return the messages that have arrived from the ranks. Waits briefly for the first one."""
    messages = []
    while len(messages) < 100 and supervisor.poll(0 if messages else LOOK_EVERY):
        messages.append(supervisor.recv())
    return messages


def _in_wall_time(message: Any) -> Any:
    """Return the message with wall-clock times: a node's monotonic clock starts when the node boots."""
    shift = time.time() - time.monotonic()
    if isinstance(message, Returned):
        return message.later(shift)
    if isinstance(message, Raised):
        return replace(message, spans=[span.since(-shift) for span in message.spans], at=message.at + shift)
    if isinstance(message, Died):
        return replace(message, at=message.at + shift)
    return message
