"""What runs inside a live rank: one task after another, while its variables stay in the main module.

A task is a call whose first argument is the `LiveRank`; ranks that have no part in it skip it. Meanwhile, a thread
takes orders. To end a task, it sends the main thread SIGINT, like Ctrl-C, and it can cut the connections of the process
group to end a wait in it.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import queue
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Mapping
from typing import Any

from course_lib.launcher.live import cell
from course_lib.launcher.rank.joining import A_DAY, join_process_group
from course_lib.launcher.rank.lifetime import value_of
from course_lib.launcher.rank.main import RankProcess, store_file
from course_lib.launcher.wire import messages, pickling
from course_lib.runtime import machine, private_doors

PREDEFINED = frozenset({"rank", "world_size", "device", "dist", "torch"})  # names that every rank starts with


def serve(process: RankProcess, folder: str) -> None:
    """Run tasks until this rank is dismissed."""
    rank = LiveRank(process, folder)
    process.returned = True  # it has nothing to do yet
    process.announce()
    while (task := rank.tasks.get()) is not None:
        rank.run(task)


class LiveRank:
    """One live rank: its variables, its tasks, and the way out of a task."""

    def __init__(self, process: RankProcess, folder: str) -> None:
        import torch
        import torch.distributed as dist

        self.process, self.folder = process, folder
        self.tasks: queue.SimpleQueue[messages.LiveTask | None] = queue.SimpleQueue()
        self._in_task = False
        self.left_batches = 0  # batches of messages over NCCL that were aborted
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        self.names: dict[str, Any] = vars(main)
        self.names |= {"rank": process.rank, "world_size": dist.get_world_size(), "device": machine.device()}
        self.names |= {"dist": dist, "torch": torch}
        process.obey = self._obey
        signal.signal(signal.SIGINT, self._leave_task)

    def run(self, task: messages.LiveTask) -> None:
        """Run a task, and report its value or its error."""
        self.process.start(task.number)
        try:
            started_at = time.monotonic()
            try:
                self._in_task = True  # SIGINT has an effect only in here
                call, (ranks, *arguments), _ = pickling.unpack(task.call)
                value = value_of(call, self, *arguments) if self.process.rank in ranks else None
                machine.wait_for_gpu()
            finally:
                self._in_task = False
            names = sorted(name for name in self.names if not name.startswith("_"))
            self.process.finish(pickling.pack_value((value, names)), started_at, time.monotonic())
        except BaseException as error:
            self._in_task = False  # the interrupt may have come before the line above that clears it
            self.left_batches += private_doors.was_in_batch(error)
            self.process.report(error)

    def _leave_task(self, *_: object) -> None:
        if self._in_task:
            raise KeyboardInterrupt

    def _obey(self, order: Any) -> None:  # in the thread that answers the supervisor
        if isinstance(order, messages.LiveTask):
            self.tasks.put(order)
        elif order == messages.DISMISS:
            self.tasks.put(None)
        elif isinstance(order, messages.Interrupt):
            if order.abort:
                abort_groups()
            main = threading.main_thread().ident
            if self._in_task and main is not None and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main, signal.SIGINT)


def run_cell(rank: LiveRank, values: bytes, code: str, name: str, sources: Mapping[str, tuple]) -> cell.Shown | None:
    """Run a cell. `values` holds what the notebook sends for names that are missing here."""
    linecache.cache.update(sources)
    for missing_name, value in pickling.unpack(values).items():
        rank.names.setdefault(missing_name, value)
    value = cell.execute(code, name, rank.names)
    if value is not None:
        rank.names["_"] = value
    return cell.show(value)


def push(rank: LiveRank, values: bytes) -> None:
    """Assign names on this rank."""
    rank.names.update(pickling.unpack(values))


def pull(rank: LiveRank, name: str) -> Any:
    """Return the value of a name."""
    if name not in rank.names:
        raise NameError(f"there is no {name!r} on this rank")
    return rank.names[name]


def report_names(rank: LiveRank) -> None:
    """Do no work: every task reports the names on its rank anyway."""


def rejoin(rank: LiveRank, generation: int) -> None:
    """Make a new process group with all ranks.

    Groups that the previous call destroyed are freed only now, when their threads have nothing left to do. Freeing a
    group holds the GIL, and a thread that still had work to release would need it.

    The previous group's file also stays. A rank may still hold that group: without the file, NCCL's heartbeat monitor
    would wait five minutes for it, and `destroy_process_group` would wait for the monitor.
    """
    import torch.distributed as dist

    process = rank.process
    process.destroyed_groups.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    with contextlib.suppress(OSError):
        os.unlink(store_file(rank.folder, generation - 2))
    file = store_file(rank.folder, generation)
    join_process_group(process.rank, int(os.environ["WORLD_SIZE"]), store_file=file, peer_timeout=A_DAY)
    process.log.start_over(generation)
    for _ in range(rank.left_batches):
        private_doors.leave_nccl_group()
    rank.left_batches = 0


def abort_groups() -> None:
    """Make every wait in a process group of this process end with an error, on all ranks if all of them do this.

    NCCL's backend can be aborted. gloo's cannot, but it notices when a connection is shut down, so we shut down those
    that this process has accepted. The ranks at the other ends notice, too.
    """
    for group in private_doors.process_groups():
        with contextlib.suppress(Exception):
            backend = private_doors.backend_of(group, sys.modules["torch"].device("cuda"))
            if "nccl" in type(backend).__name__.lower():
                backend.abort()
    listening_ports = {sock.getsockname()[1] for sock in machine.internet_sockets() if machine.is_listening(sock)}
    for sock in machine.internet_sockets():
        if not machine.is_listening(sock) and sock.getsockname()[1] in listening_ports:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
