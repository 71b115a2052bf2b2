"""One node of a Slurm job: starts its ranks as a notebook would, and relays messages between them and the submitter.

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
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from course_lib.launcher.hangs.errors import RankDied, RankFailed
from course_lib.launcher.notebook.launch import supervisor_of
from course_lib.launcher.notebook.progress_bar import ProgressBar
from course_lib.launcher.wire import messages
from course_lib.launcher.wire.progress import parse_report
from course_lib.runtime import stop

LOOK_EVERY = 0.05
# Ranks that are done wait to be dismissed, because others may still need them. If the watcher, which would dismiss
# them, is silent for this many seconds, we assume that it is gone: the job ends when its ranks do, and frees its nodes.
GONE_AFTER = 60.0
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


def message_files(folder: str | Path, nodes: int, attempt: int) -> tuple[list[MessageFile], MessageFile]:
    """Return the files with the messages from each node, and the file with the orders to all of them."""
    reports = [MessageFile(Path(folder, f"node-{node}.{attempt}")) for node in range(nodes)]
    return reports, MessageFile(Path(folder, f"orders.{attempt}"))


def run_node(spec: messages.LaunchSpec, nodes: int, peer_timeout: float | None, folder: str | None) -> int:
    """Run this node's ranks until they end. Returns the exit status, which is `REQUEUE` if they were stopped.

    A watcher reads the messages in `folder`; None means that there is no watcher.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm signals every process on a node, and children inherit this
    node, attempt = int(os.environ["SLURM_NODEID"]), int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    first = _scontrol("show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()[0]
    found = re.search(r"NodeAddr=(\S+)", _scontrol("--oneliner", "show", "node", first))
    address = found[1] if found else first  # may differ from the node's name
    port, job = int(os.environ["MASTER_PORT"]), os.environ["SLURM_JOB_ID"]
    here = range(spec.ranks * node // nodes, spec.ranks * (node + 1) // nodes)
    rendezvous = messages.Rendezvous(address, port, job, attempt, peer_timeout)
    spec = replace(spec, here=here, rendezvous=rendezvous, environment=dict(os.environ))
    os.chdir(spec.folder)
    reports, orders = message_files(folder, nodes, attempt) if folder else ([None] * nodes, None)
    with (
        supervisor_of(spec) as (supervisor, _),
        stop.asked_by_signals("SIGUSR1"),
        stop.request.passed_on(lambda reason: supervisor.send(messages.Stop(reason))),
    ):
        return _relay(supervisor, here, reports[node], orders)


def _scontrol(*arguments: str) -> str:
    return subprocess.run(["scontrol", *arguments], capture_output=True, text=True).stdout


def _relay(
    supervisor: messages.SupervisorChannel, here: range, reports: MessageFile | None, orders: MessageFile | None
) -> int:
    """Forward messages in both directions until the ranks are dismissed, or done with no watcher left.

    Returns the exit status: `REQUEUE` if a signal asked the ranks to stop and all of them stopped early.
    """
    bar, failed, watched, heard_at = ProgressBar(sys.stdout), False, orders is not None, time.monotonic()
    finished: set[int] = set()
    stopped: set[int] = set()
    while watched or not (failed or len(finished) == len(here)):
        reported: list[Any] = []
        try:
            while len(reported) < 100 and supervisor.poll(0 if reported else LOOK_EVERY):
                reported.append(supervisor.recv())
        except (EOFError, ConnectionError):  # the ranks were dismissed
            break
        if stop.request.reason:
            stopped |= {each.rank for each in reported if isinstance(each, messages.Returned) and each.stopped}
            reported = [each for each in reported if getattr(each, "rank", None) not in stopped]
        if len(stopped) == len(here):
            print(f"[launch] stopped by {stop.request.reason}; the ranks have saved their state", flush=True)
            time.sleep(LINGER)
            return stop.REQUEUE
        for message in reported:
            fault = None
            match message:
                case messages.Lines(rank, lines):
                    for line in lines:
                        if progress := parse_report(line):
                            bar.show(progress)
                        else:
                            print(f"[rank {rank}] {line}", flush=True)
                case messages.Returned(rank):
                    finished.add(rank)
                case messages.Raised(rank):
                    fault = RankFailed(f"{message.type_name}: {message.text}", rank=rank, stack=message.stack)
                case messages.Died(rank):
                    fault = RankDied(rank=rank, exitcode=message.exitcode, stack=message.stack)
                case messages.SupervisorFailed(text):
                    fault = text
            if fault is not None:
                failed = True
                print(f"[launch] {fault}", flush=True)
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
    if not failed:
        time.sleep(LINGER)
    return 1 if failed else 0
