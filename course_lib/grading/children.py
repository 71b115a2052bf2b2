"""Processes that look at what students have handed in, so that the grader never does.

A child is forked from the server that ranks are forked from, does one task after the other, and has limits for each.
Whatever a submission does to it, the child is replaced, and the next submission finds a fresh one.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.checks.notebooks import BadNotebook
from course_lib.launchers import private_doors
from course_lib.launchers.local import PRELOADED, main_module_hidden, start_method, warm_up

TICK = 0.1  # seconds until the grader looks again whether somebody has interrupted it
LARGEST_REPLY = 64 << 20
MOST_TASKS = 100  # of one child: whatever it keeps in its memory goes with it


class ChildFailed(RuntimeError):
    """The task came to no end, or to a bad one; the sentence says how."""


@dataclass(frozen=True)
class Allowance:
    """What one task may use: many times what an honest submission needs."""

    cpu_seconds: int = 20
    memory: int = 4 << 30  # bytes, besides what the child has mapped already
    seconds: float = 600.0  # of the wall, for a child that does not even compute


class Child:
    """One process and the talk with it. It is started when it is needed, and again when it has gone."""

    def __init__(self, stop: threading.Event, allowance: Allowance | None) -> None:
        self.stop, self.allowance = stop, allowance
        self._process: Any = None
        self._connection: Any = None
        self._tasks = 0

    def do(self, task: Callable[..., Any], *args: Any) -> Any:
        """What `task(*args)` returns there, as plain data.

        Raises `BadNotebook` if the task does, `ChildFailed` if it does not end well, `CancelledError` on `stop`.
        """
        if self.stop.is_set():
            raise CancelledError
        if self._process is None or self._tasks >= MOST_TASKS:
            self._start()
        self._tasks += 1
        try:
            return self._converse(pickle.dumps((task, args)))
        except BadNotebook:
            raise
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Leave nothing running."""
        process, self._process = self._process, None
        if process is not None:
            self._connection.close()
            process.kill()
            process.join()

    def _start(self) -> None:
        self.end()
        warm_up([*PRELOADED, "course_lib.grading.judge"])
        context: Any = multiprocessing.get_context(start_method())
        self._connection, there = context.Pipe()
        self._process, self._tasks = context.Process(target=_serve, args=(there, self.allowance)), 0
        with main_module_hidden():
            self._process.start()
        there.close()

    def _converse(self, message: bytes) -> Any:
        deadline = time.monotonic() + (self.allowance.seconds if self.allowance else float("inf"))
        try:
            self._connection.send_bytes(message)
            reply = self._reply(deadline)
        except (EOFError, OSError) as error:
            raise ChildFailed("it took more time or memory than any notebook needs") from error
        if "refused" in reply:
            raise BadNotebook(reply["refused"])
        if "failed" in reply:
            raise ChildFailed(f"it is so unusual that looking at it ended in {reply['failed']}")
        return reply["result"]

    def _reply(self, deadline: float) -> dict[str, Any]:
        while not self._connection.poll(TICK):
            if self.stop.is_set():
                raise CancelledError
            if time.monotonic() > deadline:
                raise ChildFailed("looking at it took too long")
        return json.loads(self._connection.recv_bytes(LARGEST_REPLY))


def _serve(connection: Any, allowance: Allowance | None) -> None:
    """Do what the grader asks for, until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader says when to stop
    if start_method() == "forkserver":  # the server that this process comes from forks its ranks, too
        private_doors.fork_from_the_same_server()

    while True:
        try:
            task, args = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        _keep_to(allowance)
        try:
            said = {"result": task(*args)}
        except BadNotebook as error:
            said = {"refused": str(error)}
        except (EOFError, OSError):
            return
        except BaseException as error:
            said = {"failed": type(error).__name__}
        connection.send_bytes(json.dumps(said).encode())


def _keep_to(allowance: Allowance | None) -> None:
    """Let the kernel end this process if its next task takes more than it may."""
    if allowance is None or not sys.platform.startswith("linux"):
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + allowance.cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if most < 0 else min(seconds, most), most))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    total = mapped + allowance.memory
    resource.setrlimit(resource.RLIMIT_AS, (total if most < 0 else min(total, most), most))
