"""One node of a Slurm job: starts the node's ranks as a notebook would, and is the notebook's ear and mouth there.

    srun --ntasks-per-node=1 python -m course_lib.launchers.slurm FOLDER
    srun --ntasks-per-node=1 python -m course_lib train ... --slurm ...

Some time before the job's time is up, Slurm sends SIGUSR1. Ranks that have saved what they had and stopped are not
reported as done: the node ends with a status by which the job's script puts the job back into the queue. What the ranks
print is also in the job's own output file, for whoever looks there.
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
from course_lib.launchers.process.progress_bar import Bar, record_of
from course_lib.launchers.slurm.nodes import MessageFile, message_files, orders
from course_lib.launchers.slurm.queue import address_of_first_node
from course_lib.launchers.slurm.script import Place


class NodeLog:
    """Writes lines behind their rank's name, how far the run is every ten seconds, and how ranks have failed."""

    def __init__(self) -> None:
        self.faults = 0
        self._bar = Bar(sys.stdout)

    def write(self, text: str) -> None:
        """Write a line now."""
        print(text, flush=True)

    def add(self, messages: Iterable[Any]) -> None:
        """Write what is worth it."""
        for message in messages:
            match message:
                case Lines(rank, lines):
                    self._add_lines(rank, lines)
                case Raised(rank):
                    self._fault(RankFailed(f"{message.type_name}: {message.text}", rank=rank, stack=message.stack))
                case Died(rank):
                    self._fault(RankDied(rank=rank, exitcode=message.exitcode, stack=message.stack))
                case SupervisorFailed(text):
                    self._fault(text)

    def _add_lines(self, rank: int, lines: list[str]) -> None:
        for line in lines:
            if progress := record_of(line):
                self._bar.show(progress)
            else:
                self.write(f"[rank {rank}] {line}")

    def _fault(self, what: object) -> None:
        self.faults += 1
        self.write(f"[launch] {what}")


LOOK_EVERY = 0.05
# Ranks that are done wait to be dismissed, because others may still need them. If whoever would dismiss them is
# silent for so long, it is gone: the job has done its work, and gives its nodes back.
GONE_AFTER = 60.0
LINGER = 1.0  # seconds in which other nodes may still read what was sent to them


def main(folder: Path) -> int:
    """Run this node's ranks of a function that was sent here to their end. Returns the exit status."""
    spec, place, sys.path[:] = pickle.loads((folder / "job").read_bytes())
    return run_node(spec, place, folder)


def run_node(spec: LaunchSpec, place: Place, folder: Path | None) -> int:
    """Run this node's ranks to their end. Returns the exit status: that of the stop, if they were stopped.

    In `folder` somebody listens; without one, nobody does.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm signals all that a node has started; what we start inherits
    node, attempt = int(os.environ["SLURM_NODEID"]), int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    spec = _part_of(spec, place, node, attempt)
    os.chdir(spec.folder)
    watcher = Watcher(message_files(folder, place.nodes, attempt)[node], orders(folder, attempt)) if folder else None
    with (
        supervisor_of(spec) as supervisor,
        stop.asked_by_signals("SIGUSR1"),
        stop.request.passed_on(lambda reason: supervisor.send(Stop(reason))),
    ):
        return _pass_on(supervisor, spec, watcher)


def _part_of(spec: LaunchSpec, place: Place, node: int, attempt: int) -> LaunchSpec:
    """The ranks of one node, in the environment that Slurm gives them."""
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
    """Whoever has submitted the job and watches it, as a node sees it."""

    def __init__(self, reports: MessageFile, orders: MessageFile) -> None:
        self._reports, self._orders = reports, orders
        self._heard = time.monotonic()
        self.is_there = True

    def tell(self, messages: list[Any]) -> None:
        """Pass on what the ranks say."""
        if messages:
            self._reports.append(*map(_in_common_time, messages))

    def listen(self) -> list[Any]:
        """What the ranks are to be told."""
        heard = self._orders.read()
        if heard:
            self._heard = time.monotonic()
        was_there, self.is_there = self.is_there, time.monotonic() - self._heard < GONE_AFTER
        if was_there and not self.is_there:
            print("[launch] nobody watches this job any more; it goes on", flush=True)
        return [order for order in heard if order != STILL_HERE]


def _pass_on(supervisor: Channel, spec: LaunchSpec, watcher: Watcher | None) -> int:
    """Pass messages both ways until the ranks are dismissed, or nobody is there to do so. Returns the exit status.

    Ranks have stopped, where a signal asked them to, and all have done so before their end.
    """
    log = NodeLog()
    done: set[int] = set()
    stopped: set[int] = set()
    while (watcher and watcher.is_there) or not (log.faults or len(done) == len(spec.here)):
        try:
            messages = _waiting(supervisor)
        except (EOFError, ConnectionError):
            break
        if stop.request.reason:
            stopped |= {message.rank for message in messages if isinstance(message, Returned) and message.stopped}
            messages = [message for message in messages if getattr(message, "rank", None) not in stopped]
        if len(stopped) == len(spec.here):
            log.write(f"[launch] stopped by {stop.request.reason}; what the ranks had is saved")
            time.sleep(LINGER)
            return stop.REQUEUE
        done |= {message.rank for message in messages if isinstance(message, (Returned, Raised, Died))}
        log.add(messages)
        if watcher:
            watcher.tell(messages)
            for order in watcher.listen():
                supervisor.send(order)
    if log.faults:
        return 1
    time.sleep(LINGER)
    return 0


def _waiting(supervisor: Channel) -> list[Any]:
    """What the ranks have said by now; waits a moment for the first word."""
    messages = []
    while len(messages) < 100 and supervisor.poll(0 if messages else LOOK_EVERY):
        messages.append(supervisor.recv())
    return messages


def _in_common_time(message: Any) -> Any:
    """The same message with the time of day in it: a node's monotonic clock began when the node did."""
    shift = time.time() - time.monotonic()
    if isinstance(message, Returned):
        return message.later(shift)
    if isinstance(message, Raised):
        return replace(message, spans=[span.since(-shift) for span in message.spans], at=message.at + shift)
    if isinstance(message, Died):
        return replace(message, at=message.at + shift)
    return message
