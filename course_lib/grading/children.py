"""Child processes that handle untrusted submissions, so that the grader never does.

A child is forked from the same fork server as the ranks. It runs one task after another, each with limits. If a
submission breaks the child, the next submission gets a fresh one.
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

from course_lib.launcher.notebook.launch import PRELOADED, main_module_hidden, start_method, warm_up
from course_lib.runtime import private_doors
from course_lib.runtime.course_files import BadNotebook

TICK = 0.1  # seconds between checks for an interrupt
LARGEST_REPLY = 64 << 20
MOST_TASKS = 100  # per child: replacing it frees whatever memory it leaked


class ChildFailed(RuntimeError):
    """The task failed or did not finish; the message says how."""


@dataclass(frozen=True)
class Allowance:
    """The limits of one task, many times what an honest submission needs."""

    cpu_seconds: int = 20
    memory: int = 4 << 30  # bytes, on top of what the child has already mapped
    seconds: float = 600.0  # wall time, for a child that blocks without using CPU


class Child:
    """One child process and the connection to it. It starts on first use, and again after it has died."""

    def __init__(self, stop: threading.Event, allowance: Allowance | None) -> None:
        self.stop, self.allowance = stop, allowance
        self._process: Any = None
        self._connection: Any = None
        self._tasks = 0

    def do(self, task: Callable[..., Any], *args: Any) -> Any:
        """Run `task(*args)` in the child and return its result as plain data.

        Raises `BadNotebook` if the task does, `ChildFailed` if it fails in any other way, `CancelledError` on `stop`.
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
        """Kill the child, if it is running."""
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
            raise ChildFailed(f"processing it failed with {reply['failed']}")
        return reply["result"]

    def _reply(self, deadline: float) -> dict[str, Any]:
        while not self._connection.poll(TICK):
            if self.stop.is_set():
                raise CancelledError
            if time.monotonic() > deadline:
                raise ChildFailed("processing it took too long")
        return json.loads(self._connection.recv_bytes(LARGEST_REPLY))


def _serve(connection: Any, allowance: Allowance | None) -> None:
    """Run the grader's tasks until it closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader decides when to stop
    if start_method() == "forkserver":  # fork this child's ranks from the server that forked it
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
    """Set resource limits, so that the kernel ends this process if its next task exceeds its allowance."""
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
