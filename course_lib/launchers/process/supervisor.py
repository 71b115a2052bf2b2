"""The process between a notebook and its ranks: it starts the ranks, forwards their messages, and ends them.

There is one supervisor per launch, and it is the ancestor of all of the launch's processes. It runs none of the
learner's code, so nothing a rank does can stop it. When the notebook closes the connection, or is killed, the
supervisor ends every process that its ranks have started, and then itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from course_lib import machine
from course_lib.launchers.diagnosis.errors import CannotStart, explain_failure
from course_lib.launchers.diagnosis.stacks import Where, locate
from course_lib.launchers.process import messages
from course_lib.launchers.process.folders import sweep_temporary_folders, temporary_folder
from course_lib.launchers.process.rank_handle import LineReader, RankHandle

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase as Connection  # pipes have a different class on Windows
    from multiprocessing.context import ForkContext, SpawnContext

TICK = 0.05  # how often to check whether a rank has died: its pipes may stay open in its children
ANSWER_WITHIN = 1.0  # a rank that takes longer to answer is holding the GIL
SHOW_EVERY = 0.2  # seconds between two looks at the ranks' unfinished lines
EXIT_WITHIN = 2.0  # how long a dismissed rank may take to end its threads
IDLE = "the ranks were idle for {:g} s, so they were ended and their variables are lost: call team.restart()"


def supervise(spec: messages.LaunchSpec, notebook: Connection, start_method: str) -> None:
    """Run one launch. Returns when the ranks have been dismissed or the notebook is gone."""
    if hasattr(os, "setsid"):
        os.setsid()  # signals to the notebook's process group do not reach us
    if sys.platform.startswith("linux"):
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)  # adopt the processes that ranks leave behind
    gc.freeze()  # otherwise a rank's garbage collector would touch what we share with it, and so copy its memory
    try:
        # Switch to the environment and working folder of the cell that called `launch`.
        os.environ.clear()
        os.environ.update(spec.environment)
        os.chdir(spec.folder)
        os.environ["MASTER_PORT"] = str(machine.free_port())
        if "torch" in sys.modules:  # imported before the fork, so we can count the GPUs once for all ranks
            os.environ[machine.COUNTED_GPUS] = str(machine.gpus())
        with temporary_folder() as folder:
            supervisor = Supervisor(spec, notebook)
            try:
                supervisor.start_ranks(folder, start_method)
                sweep_temporary_folders()
                supervisor.serve()
            finally:
                _end(supervisor.team)
    except HungUp:
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            notebook.send(messages.SupervisorFailed(explain_failure(error)))


class HungUp(Exception):
    """The notebook is gone, or has closed its connection to this launch."""


class Supervisor:
    """Forwards messages in both directions between a notebook and its ranks, until the notebook dismisses them."""

    def __init__(self, spec: messages.LaunchSpec, notebook: Connection) -> None:
        self.spec, self.notebook = spec, notebook
        self.team: list[RankHandle] = []
        self.dismissed = False
        self._handlers: dict[Any, Callable[[], None]] = {notebook: self._obey}  # what to do when this can be read
        self._unanswered: dict[int, float] = {}  # until when a rank that was asked where it is may take to answer
        self._shown: dict[int, str] = {}  # each rank's unfinished line, as the notebook knows it
        self._show_at = 0.0
        self._busy: set[int] = set()  # live ranks that work on a task
        self._idle_since = time.monotonic()
        self._clock = time.time if spec.rendezvous else time.monotonic  # the one that all ranks share

    def start_ranks(self, folder: str, start_method: str) -> None:
        # The type stubs know a context's class only if its method is a literal.
        context = cast("ForkContext | SpawnContext", multiprocessing.get_context(start_method))
        for rank in self.spec.here:
            try:
                member = RankHandle(rank, self.spec, folder, context)
            except (OSError, MemoryError) as error:
                reason = explain_failure(error)
                raise CannotStart(f"rank {rank} of {self.spec.ranks} could not be started: {reason}") from error
            self.team.append(member)
            self._handlers[member.control] = partial(self._forward_report, member)
            for reader in member.readers:
                self._handlers[reader.pipe] = partial(self._forward_lines, member, reader)

    def serve(self) -> None:
        """Handle messages until the ranks are dismissed."""
        while not self.dismissed:
            for ready in wait(list(self._handlers), timeout=TICK):
                if ready in self._handlers:  # an earlier one may have removed it
                    self._handlers[ready]()
            self._show_unfinished()
            for member in self.team:
                if member.alive and (exitcode := member.exitcode()) is not None:
                    self._report_death(member, exitcode)
            self._signal_unresponsive()
            if self.spec.idle is not None and not self._busy and time.monotonic() - self._idle_since > self.spec.idle:
                self._send(messages.SupervisorFailed(IDLE.format(self.spec.idle)))
                self._dismiss()

    def _obey(self) -> None:
        """Read an order from the notebook and carry it out."""
        try:
            order = self.notebook.recv()
        except (EOFError, OSError) as error:
            raise HungUp from error
        if order == messages.DISMISS:
            return self._dismiss()
        running = [member for member in self.team if member.alive]
        if order == messages.LOCATE:
            self._unanswered = {member.rank: time.monotonic() + ANSWER_WITHIN for member in running}
        elif isinstance(order, messages.LiveTask):
            self._busy = {member.rank for member in running}
        elif isinstance(order, messages.Interrupt) and hasattr(signal, "SIGCONT"):
            for member in running:  # those that a signal has stopped could not react
                with contextlib.suppress(OSError):
                    os.kill(member.pid, signal.SIGCONT)
        self._idle_since = self._idle_since if order == messages.LOCATE else time.monotonic()
        self._send_to_all(messages.LOCATE if order == messages.LOOK else order)

    def _forward_report(self, member: RankHandle) -> None:
        try:
            report = member.control.recv()
        except (EOFError, OSError):  # the rank is dying, and its exit code will say how
            return self._forget(member.control)
        if isinstance(report, messages.Located):
            self._unanswered.pop(member.rank, None)
        elif isinstance(report, (messages.Returned, messages.Raised)):
            self._busy.discard(member.rank)
        self._idle_since = time.monotonic()
        self._send_lines(member, member.drain())
        self._send(report)

    def _forward_lines(self, member: RankHandle, reader: LineReader) -> None:
        self._send_lines(member, reader.read())
        if reader.closed:
            self._forget(reader.pipe)

    def _show_unfinished(self) -> None:
        """Forward the ranks' unfinished lines: a progress bar is overwritten for minutes before its line ends."""
        if time.monotonic() < self._show_at:
            return
        self._show_at = time.monotonic() + SHOW_EVERY
        for member in self.team:
            text = next(filter(None, (reader.unfinished() for reader in member.readers)), "")
            if text and text != self._shown.get(member.rank):
                self._send(messages.Unfinished(member.rank, text))
            self._shown[member.rank] = text

    def _report_death(self, member: RankHandle, exitcode: int) -> None:
        """Report everything that a rank has sent and printed, and then its death."""
        member.alive = False
        member.kill()  # processes it left behind may hold its pipes
        with contextlib.suppress(OSError):
            while member.control in self._handlers and member.control.poll(0):
                self._forward_report(member)
        self._send_lines(member, member.drain())
        for pipe in (member.control, *(reader.pipe for reader in member.readers)):
            self._forget(pipe)
        self._busy.discard(member.rank)
        self._idle_since = time.monotonic()
        self._send(messages.Died(member.rank, exitcode, member.stack(), at=self._clock()))

    def _signal_unresponsive(self) -> None:
        """Signal the ranks that don't answer. Even if no Python thread can run, the C handler dumps the stack."""
        for member in self.team:
            if time.monotonic() < self._unanswered.get(member.rank, float("inf")):
                continue
            del self._unanswered[member.rank]
            if not member.alive:
                continue
            where = Where("stopped")
            if not member.is_stopped():
                if hasattr(signal, "SIGUSR1"):
                    os.kill(member.pid, signal.SIGUSR1)
                    time.sleep(TICK)
                where = locate(member.stack())
            self._send(messages.Located(member.rank, where, record=None))

    def _dismiss(self) -> None:
        """Let the ranks go, and wait a little for their threads to end."""
        self.dismissed = True
        self._send_to_all(messages.DISMISS)
        deadline = time.monotonic() + EXIT_WITHIN
        while any(member.exitcode() is None for member in self.team) and time.monotonic() < deadline:
            time.sleep(0.002)

    def _send(self, message: Any) -> None:
        try:
            self.notebook.send(message)
        except OSError as error:
            raise HungUp from error

    def _send_lines(self, member: RankHandle, lines: list[str]) -> None:
        if lines:
            self._send(messages.Lines(member.rank, lines))

    def _send_to_all(self, order: Any) -> None:
        for member in self.team:
            with contextlib.suppress(OSError):
                member.control.send(order)

    def _forget(self, readable: Any) -> None:
        self._handlers.pop(readable, None)


def _end(team: list[RankHandle]) -> None:
    """Kill the ranks, their process groups, and everything else they started."""
    for member in team:
        member.kill()
    for member in team:
        member.process.join()
    while children := _children():
        for child in children:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []
