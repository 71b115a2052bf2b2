"""One node of a Slurm job: starts its ranks as a notebook would, and relays messages between them and the submitter.

    srun --ntasks-per-node=1 python -m course_lib.launchers.slurm FOLDER
    srun --ntasks-per-node=1 python -m course_lib train ... --slurm ...

Shortly before the job's time is up, Slurm sends SIGUSR1. Ranks that then save their state and stop are not reported as
done: the node exits with a status that makes the job's script requeue the job. What the ranks print is also written to
the job's output file.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from course_lib.launchers.diagnosis.errors import RankDied, RankFailed
from course_lib.launchers.local import supervisor_of
from course_lib.launchers.process import messages, stop
from course_lib.launchers.process.progress_bar import ProgressBar, parse_report
from course_lib.launchers.slurm.job import Place, slurm_command

LOOK_EVERY = 0.05
# Ranks that are done wait to be dismissed, because others may still need them. If the watcher, which would dismiss
# them, is silent for this many seconds, we assume that it is gone: the job ends when its ranks do, and frees its nodes.
GONE_AFTER = 60.0
LAST_REPORTS = (messages.Returned, messages.Raised, messages.Died)
LINGER = 1.0  # seconds for other nodes to read what was sent to them


class MessageFile:
    """The messages from one side, in order. That side calls `append`; the other calls `read`.

    NFS guarantees that whoever opens a file after its writer has closed it sees the new content, but a new *name* in a
    folder may stay hidden for a minute. So both sides open the file each time, and it exists before the job starts.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._position = path, 0

    def append(self, *sent: Any) -> None:
        """Send messages. When this returns, the other side can read them."""
        with self.path.open("ab") as file:
            file.write(b"".join(map(pickle.dumps, sent)))

    def read(self) -> list[Any]:
        """Return the messages since the last call. One that is not complete yet is left for later."""
        received: list[Any] = []
        # Unpickling can run code. Only the user and root can write to this folder (0700).
        with contextlib.suppress(FileNotFoundError, EOFError, pickle.UnpicklingError), self.path.open("rb") as file:
            file.seek(self._position)
            while True:
                received.append(pickle.load(file))
                self._position = file.tell()
        return received


def message_files(folder: Path, nodes: int, attempt: int) -> tuple[list[MessageFile], MessageFile]:
    """Return the files with the messages from each node, and the file with the orders to all of them."""
    reports = [MessageFile(folder / f"node-{node}.{attempt}") for node in range(nodes)]
    return reports, MessageFile(folder / f"orders.{attempt}")


def run_node(spec: messages.LaunchSpec, place: Place, folder: Path | None) -> int:
    """Run this node's ranks until they end. Returns the exit status, which is `REQUEUE` if they were stopped.

    A watcher reads the messages in `folder`; None means that there is no watcher.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm signals every process on a node, and children inherit this
    node, attempt = int(os.environ["SLURM_NODEID"]), int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    first = slurm_command("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).stdout.split()[0]
    shown = slurm_command("scontrol", "--oneliner", "show", "node", first).stdout
    found = re.search(r"NodeAddr=(\S+)", shown)  # may differ from the node's name
    address, port, job = found[1] if found else first, int(os.environ["MASTER_PORT"]), os.environ["SLURM_JOB_ID"]
    rendezvous = messages.Rendezvous(address, port, job, attempt, place.peer_timeout)
    here = range(node * place.local_ranks, (node + 1) * place.local_ranks)
    spec = replace(spec, here=here, rendezvous=rendezvous, environment=dict(os.environ))
    os.chdir(spec.folder)
    reports, orders = message_files(folder, place.nodes, attempt) if folder else ([None] * place.nodes, None)
    with (
        supervisor_of(spec) as (supervisor, _),
        stop.asked_by_signals("SIGUSR1"),
        stop.request.passed_on(lambda reason: supervisor.send(messages.Stop(reason))),
    ):
        return _pass_on(supervisor, here, reports[node], orders)


def _pass_on(
    supervisor: messages.SupervisorChannel, here: range, reports: MessageFile | None, orders: MessageFile | None
) -> int:
    """Forward messages in both directions until the ranks are dismissed, or done with no watcher left.

    Returns the exit status: `REQUEUE` if a signal asked the ranks to stop and all of them stopped early.
    """
    bar, faults, watched, heard_at = ProgressBar(sys.stdout), 0, orders is not None, time.monotonic()
    finished: set[int] = set()
    stopped: set[int] = set()
    while watched or not (faults or len(finished) == len(here)):
        reported: list[Any] = []
        try:
            while len(reported) < 100 and supervisor.poll(0 if reported else LOOK_EVERY):
                reported.append(supervisor.recv())
        except (EOFError, ConnectionError):
            break
        if stop.request.reason:
            stopped |= {each.rank for each in reported if isinstance(each, messages.Returned) and each.stopped}
            reported = [each for each in reported if getattr(each, "rank", None) not in stopped]
        if len(stopped) == len(here):
            print(f"[launch] stopped by {stop.request.reason}; the ranks have saved their state", flush=True)
            time.sleep(LINGER)
            return stop.REQUEUE
        finished |= {each.rank for each in reported if isinstance(each, LAST_REPORTS)}
        faults += sum(_log(each, bar) for each in reported)
        if reports and reported:
            reports.append(*reported)
        if orders and (received := orders.read()):
            heard_at = time.monotonic()
            for order in received:
                if order != messages.STILL_HERE:
                    supervisor.send(order)
        if watched and time.monotonic() - heard_at > GONE_AFTER:
            watched = False
            print("[launch] this job is no longer watched; it keeps running", flush=True)
    if not faults:
        time.sleep(LINGER)
    return 1 if faults else 0


def _log(message: Any, bar: ProgressBar) -> bool:
    """Write what belongs in the job's output file: lines, the progress, and failures. Returns whether it is one."""
    fault: object = None
    match message:
        case messages.Lines(rank, lines):
            for line in lines:
                if progress := parse_report(line):
                    bar.show(progress)
                else:
                    print(f"[rank {rank}] {line}", flush=True)
        case messages.Raised(rank):
            fault = RankFailed(f"{message.type_name}: {message.text}", rank=rank, stack=message.stack)
        case messages.Died(rank):
            fault = RankDied(rank=rank, exitcode=message.exitcode, stack=message.stack)
        case messages.SupervisorFailed(text):
            fault = text
    if fault is not None:
        print(f"[launch] {fault}", flush=True)
    return fault is not None
