"""One node of a Slurm job: starts the node's ranks as a notebook would, and is the notebook's ear and mouth there.

srun --ntasks-per-node=1 python -m course_lib.launchers.slurm.node FOLDER

Some time before the job's time is up, Slurm sends SIGUSR1. Ranks that have saved what they had and stopped are not
reported as done: the node leaves a mark, and the job's script puts the job back into the queue.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from course_lib.launchers.local import supervisor_of
from course_lib.launchers.process import stop
from course_lib.launchers.process.messages import (
    STILL_HERE,
    Channel,
    Died,
    LaunchSpec,
    Raised,
    Rendezvous,
    Returned,
    Stop,
)
from course_lib.launchers.slurm.cluster import Slurm, message_files, orders, stopped_mark
from course_lib.launchers.slurm.message_file import MessageFile
from course_lib.launchers.slurm.queue import address_of_first_node

LOOK_EVERY = 0.05
FIRST_PORT, PORTS = 20_000, 10_000
# Ranks that are done wait to be dismissed, because others may still need them. If whoever would dismiss them is
# silent for so long, it is gone: the job has done its work, and gives its nodes back.
GONE_AFTER = 60.0


def main(folder: Path) -> None:
    """Run this node's ranks to their end."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm signals all that a node has started; what we start inherits
    node, attempt = int(os.environ["SLURM_NODEID"]), int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    spec, place, sys.path[:] = pickle.loads((folder / "job").read_bytes())
    spec = _part_of(spec, place, node, attempt)
    os.chdir(spec.folder)
    reports, told = message_files(folder, place.nodes, attempt)[node], orders(folder, attempt)
    with (
        supervisor_of(spec) as supervisor,
        stop.asked_by_signals("SIGUSR1"),
        stop.request.passed_on(lambda reason: supervisor.send(Stop(reason))),
    ):
        if _pass_on(supervisor, spec, reports, told):
            stopped_mark(folder, attempt).touch()


def _part_of(spec: LaunchSpec, place: Slurm, node: int, attempt: int) -> LaunchSpec:
    """The ranks of one node, in the environment that Slurm gives them."""
    number = os.environ["SLURM_JOB_ID"]
    rendezvous = Rendezvous(
        address=address_of_first_node(os.environ["SLURM_JOB_NODELIST"]),
        port=FIRST_PORT + int(number) % PORTS,  # jobs that share a node do not collide
        job=number,
        restarts=attempt,
        peer_timeout=place.peer_timeout,
    )
    here = range(node * place.local_ranks, (node + 1) * place.local_ranks)
    return replace(spec, here=here, rendezvous=rendezvous, environment=dict(os.environ))


def _pass_on(supervisor: Channel, spec: LaunchSpec, reports: MessageFile, orders: MessageFile) -> bool:
    """Pass messages both ways until the ranks are dismissed, or done and forgotten. Returns whether they have stopped.

    They have, where a signal asked them to, and all have done so before their end.
    """
    done: set[int] = set()
    stopped: set[int] = set()
    heard = time.monotonic()
    while len(done) < len(spec.here) or time.monotonic() - heard < GONE_AFTER:
        try:
            messages = _waiting(supervisor)
        except (EOFError, ConnectionError):
            return False
        if stop.request.reason:
            stopped |= {message.rank for message in messages if isinstance(message, Returned) and message.stopped}
            messages = [message for message in messages if getattr(message, "rank", None) not in stopped]
        if len(stopped) == len(spec.here):
            return True
        done |= {message.rank for message in messages if isinstance(message, (Returned, Raised, Died))}
        if messages:
            reports.append(*map(_in_common_time, messages))
        for order in orders.read():
            heard = time.monotonic()
            if order != STILL_HERE:
                supervisor.send(order)
    return False


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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
