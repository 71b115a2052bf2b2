"""The process between a notebook and its ranks: it starts the ranks, forwards their messages, and ends them.

There is one supervisor per launch, and it is the ancestor of all the launch's processes. It runs none of the
learner's code, so nothing a rank does can stop it. When the notebook closes the connection, or is killed, the
supervisor ends every process that its ranks have started, and then itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.launcher.hangs.errors import LaunchError, explain_failure
from course_lib.launcher.hangs.stacks import Frame, Where, locate, stack_of_dump
from course_lib.launcher.rank.main import main as run_rank
from course_lib.launcher.wire import messages
from course_lib.runtime import machine
from course_lib.runtime.patience import children, stat

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase as Connection  # pipes have a different class on Windows

TICK = 0.05  # how often to check whether a rank has died: its pipes may stay open in its children
ANSWER_WITHIN = 1.0  # a rank that takes longer to answer is holding the GIL
SHOW_EVERY = 0.2  # seconds between two looks at the ranks' unfinished lines
EXIT_WITHIN = 2.0  # how long a dismissed rank may take to end its threads
CHUNK = 1 << 16
MAX_UNFINISHED = 1 << 12  # how many bytes of an unfinished line we look at
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
        # Not a TemporaryDirectory: ranks would inherit its finalizer, and no other one would run when they exit.
        folder = tempfile.mkdtemp(prefix="course_lib-")
        supervisor = Supervisor(spec, notebook)
        try:
            supervisor.start_ranks(folder, start_method)
            supervisor.serve()
        finally:
            _end(supervisor.members)
            shutil.rmtree(folder, ignore_errors=True)
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
        self.members: list[RankHandle] = []
        self.dismissed = False
        self._handlers: dict[Any, Callable[[], None]] = {notebook: self._obey}  # what to do when this can be read
        self._show_at = 0.0
        self._idle_since = time.monotonic()

    def start_ranks(self, folder: str, start_method: str) -> None:
        context = multiprocessing.get_context(start_method)
        for number in self.spec.here:
            try:
                member = RankHandle(number, self.spec, folder, context)
            except (OSError, MemoryError) as error:
                reason = explain_failure(error)
                raise LaunchError(f"rank {number} of {self.spec.ranks} could not be started: {reason}") from error
            self.members.append(member)
            self._handlers[member.control] = partial(self._forward_report, member)
            for reader in member.readers:
                self._handlers[reader.pipe] = partial(self._forward_lines, member, reader)

    def serve(self) -> None:
        """Handle messages until the ranks are dismissed."""
        while not self.dismissed:
            for ready in wait(list(self._handlers), timeout=TICK):
                self._handlers.get(ready, lambda: None)()  # an earlier one may have removed it
            self._show_unfinished()
            for member in self.members:
                if member.alive and (exitcode := member.exitcode()) is not None:
                    self._report_death(member, exitcode)
            self._signal_unresponsive()
            idle = 0.0 if any(member.busy for member in self.members) else time.monotonic() - self._idle_since
            if self.spec.idle is not None and idle > self.spec.idle:
                self._send(messages.SupervisorFailed(IDLE.format(self.spec.idle)))
                self._dismiss()

    def _obey(self) -> None:
        try:
            order = self.notebook.recv()
        except (EOFError, OSError) as error:
            raise HungUp from error
        if order == messages.DISMISS:
            return self._dismiss()
        for member in self.members:
            if not member.alive:
                continue
            if order == messages.LOCATE:
                member.answers_by = time.monotonic() + ANSWER_WITHIN
            elif isinstance(order, messages.LiveTask):
                member.busy = True
            elif isinstance(order, messages.Interrupt) and hasattr(signal, "SIGCONT"):
                with contextlib.suppress(OSError):  # if a signal has stopped it, it could not react
                    os.kill(member.pid, signal.SIGCONT)
        self._idle_since = self._idle_since if order == messages.LOCATE else time.monotonic()
        self._send_to_all(messages.LOCATE if order == messages.LOOK else order)

    def _forward_report(self, member: RankHandle) -> None:
        try:
            report = member.control.recv()
        except (EOFError, OSError):  # the rank is dying, and its exit code will say how
            del self._handlers[member.control]
            return
        if isinstance(report, messages.Located):
            member.answers_by = math.inf
        elif isinstance(report, (messages.Returned, messages.Raised)):
            member.busy = False
        self._idle_since = time.monotonic()
        self._send_rest(member)
        self._send(report)

    def _forward_lines(self, member: RankHandle, reader: LineReader) -> None:
        if lines := reader.read():
            self._send(messages.Lines(member.rank, lines))
        if reader.closed:
            self._handlers.pop(reader.pipe, None)

    def _show_unfinished(self) -> None:
        """Forward the ranks' unfinished lines: a progress bar is overwritten for minutes before its line ends."""
        if time.monotonic() < self._show_at:
            return
        self._show_at = time.monotonic() + SHOW_EVERY
        for member in self.members:
            text = next(filter(None, (reader.unfinished() for reader in member.readers)), "")
            if text and text != member.shown:
                self._send(messages.Unfinished(member.rank, text))
            member.shown = text

    def _report_death(self, member: RankHandle, exitcode: int) -> None:
        """Report everything that a rank has sent and printed, and then its death."""
        member.alive = member.busy = False
        member.kill()  # processes it left behind may hold its pipes
        with contextlib.suppress(OSError):
            while member.control in self._handlers and member.control.poll(0):
                self._forward_report(member)
        self._send_rest(member)
        for pipe in (member.control, *(reader.pipe for reader in member.readers)):
            self._handlers.pop(pipe, None)
        self._idle_since = time.monotonic()
        at = time.time() if self.spec.rendezvous else time.monotonic()  # the clock that all ranks share
        self._send(messages.Died(member.rank, exitcode, member.stack(), at))

    def _signal_unresponsive(self) -> None:
        """Signal the ranks that don't answer. Even if no Python thread can run, the C handler dumps the stack."""
        for member in self.members:
            if not member.alive or time.monotonic() < member.answers_by:
                continue
            member.answers_by = math.inf
            where = Where("stopped")  # neither it nor its faulthandler can answer
            if stat(f"/proc/{member.pid}")[:1] not in (["T"], ["t"]):
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
        while any(member.exitcode() is None for member in self.members) and time.monotonic() < deadline:
            time.sleep(0.002)

    def _send(self, message: Any) -> None:
        try:
            self.notebook.send(message)
        except OSError as error:
            raise HungUp from error

    def _send_rest(self, member: RankHandle) -> None:
        """Forward every line that the rank has printed and that we have not read yet."""
        if lines := [line for reader in member.readers for line in reader.read_all()]:
            self._send(messages.Lines(member.rank, lines))

    def _send_to_all(self, order: Any) -> None:
        for member in self.members:
            with contextlib.suppress(OSError):
                member.control.send(order)


def _end(members: list[RankHandle]) -> None:
    """Kill the ranks, their process groups, and everything else they started."""
    for member in members:
        member.kill()
    for member in members:
        member.process.join()
    while orphans := children(os.getpid()):
        for orphan in orphans:
            with contextlib.suppress(OSError):
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)


class RankHandle:
    """One rank, as its supervisor sees it: a process, its pipes, and the lines that arrive on them."""

    def __init__(self, number: int, spec: messages.LaunchSpec, folder: str, context: Any) -> None:
        self.rank = number
        self.dump = Path(folder, f"stack.{number}")
        self.alive = True
        self.busy = False  # with a task of live ranks
        self.answers_by = math.inf  # if it was asked where it is
        self.shown = ""  # its unfinished line, as the notebook knows it
        self.control, control = context.Pipe()
        stdout_reader, stdout = context.Pipe(duplex=False)
        stderr_reader, stderr = context.Pipe(duplex=False)
        rank_pipes = (control, stdout, stderr)
        self.process = context.Process(target=run_rank, args=(number, spec, folder, *rank_pipes))
        self.process.start()
        self.pid: int = self.process.pid
        for pipe in rank_pipes:
            pipe.close()
        self.readers = [LineReader(stdout_reader), LineReader(stderr_reader)]

    def exitcode(self) -> int | None:
        """Return the rank's exit code, or None if it is running. Does not reap it: a zombie's pid is not reused."""
        if not hasattr(os, "waitid"):
            return self.process.exitcode
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def stack(self) -> list[Frame]:
        """Return the stack that `faulthandler` last dumped for this rank."""
        return stack_of_dump(self.dump.read_text(errors="replace")) if self.dump.exists() else []

    def kill(self) -> None:
        """End the rank and every process in its group."""
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.process.kill()


class LineReader:
    """Splits what arrives on a pipe into whole lines. Bytes that are not UTF-8 become escapes such as `\\xff`."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.closed = False
        self._rest = b""
        if sys.platform != "win32":
            os.set_blocking(pipe.fileno(), False)

    def read(self) -> list[str]:
        """Read a chunk and return the lines that it completes. Never blocks."""
        *whole, self._rest = (self._rest + self._chunk()).split(b"\n")
        return [_text(line) for line in whole]

    def read_all(self) -> list[str]:
        """Return all lines in the pipe, including a last line without a newline."""
        while chunk := self._chunk():
            self._rest += chunk
        data, self._rest = self._rest.removesuffix(b"\n"), b""
        return [_text(line) for line in data.split(b"\n")] if data else []

    def unfinished(self) -> str:
        """Return the current unfinished line, as a terminal would show it now."""
        return _text(self._rest[-MAX_UNFINISHED:])

    def _chunk(self) -> bytes:
        try:
            if sys.platform == "win32":
                return self.pipe.recv_bytes() if self.pipe.poll() else b""
            data = os.read(self.pipe.fileno(), CHUNK)
        except BlockingIOError:
            return b""
        except (EOFError, OSError):
            data = b""
        self.closed = not data
        return data


def _text(line: bytes) -> str:
    """Return a line as a terminal would show it: a progress bar's `\\r` overwrites what came before."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", errors="backslashreplace")
