"""The process between a notebook and its ranks: it starts the ranks, forwards their messages, and ends them.

There is one supervisor per launch, and it is the ancestor of all of the launch's processes. It runs none of the
learner's code, so nothing a rank does can stop it. When the notebook closes the connection, or is killed, the
supervisor ends every process that its ranks have started, and then itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from course_lib import machine
from course_lib.launchers.diagnosis.errors import CannotStart, explain_failure
from course_lib.launchers.diagnosis.stacks import Where, locate
from course_lib.launchers.process.folders import sweep_temporary_folders, temporary_folder
from course_lib.launchers.process.messages import (
    DISMISS,
    LOCATE,
    LOOK,
    Died,
    Interrupt,
    LaunchSpec,
    Lines,
    Located,
    Raised,
    Returned,
    SupervisorFailed,
    Task,
    Unfinished,
)
from course_lib.launchers.process.rank_handle import RankHandle

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase as Connection  # pipes have a different class on Windows
    from multiprocessing.context import ForkContext, SpawnContext

TICK = 0.05  # how often to check whether a rank has died: its pipes may stay open in its children
ANSWER_WITHIN = 1.0  # a rank that takes longer to answer is holding the GIL
SHOW_EVERY = 0.2  # seconds between two looks at the ranks' unfinished lines
EXIT_WITHIN = 2.0  # how long a dismissed rank may take to end its threads
IDLE = "the ranks were idle for {:g} s, so they were ended and their variables are lost: call team.restart()"


def supervise(spec: LaunchSpec, notebook: Connection, start_method: str) -> None:
    """Run one launch. Returns when the ranks have been dismissed or the notebook is gone."""
    _detach_from_notebook()
    link = NotebookLink(notebook)
    try:
        _prepare(spec)
        with temporary_folder() as folder:
            team: list[RankHandle] = []
            try:
                _start(team, spec, folder, start_method)
                sweep_temporary_folders()
                now = time.time if spec.rendezvous else time.monotonic  # the clock that all ranks share
                _serve(team, link, Idleness(spec.idle), now)
            finally:
                _end(team)
    except HungUp:
        pass
    except Exception as error:
        with contextlib.suppress(HungUp):
            link.send(SupervisorFailed(explain_failure(error)))


class HungUp(Exception):
    """The notebook is gone, or has closed its connection to this launch."""


class NotebookLink:
    """The connection to the notebook. When it breaks, it raises `HungUp`, which is not treated as an error."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise HungUp from error

    def recv(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, OSError) as error:
            raise HungUp from error


def _prepare(spec: LaunchSpec) -> None:
    """Switch to the environment and working folder of the cell that called `launch`."""
    os.environ.clear()
    os.environ.update(spec.environment)
    os.chdir(spec.folder)
    os.environ["MASTER_PORT"] = str(machine.free_port())
    if "torch" in sys.modules:  # imported before the fork, so we can count the GPUs once for all ranks
        os.environ[machine.COUNTED_GPUS] = str(machine.gpus())


def _start(team: list[RankHandle], spec: LaunchSpec, folder: str, start_method: str) -> None:
    # The type stubs know a context's class only if its method is a literal.
    context = cast("ForkContext | SpawnContext", multiprocessing.get_context(start_method))
    for rank in spec.here:
        try:
            team.append(RankHandle(rank, spec, folder, context))
        except (OSError, MemoryError) as error:
            raise CannotStart(f"rank {rank} of {spec.ranks} could not be started: {explain_failure(error)}") from error


class Idleness:
    """How long live ranks have had nothing to do."""

    def __init__(self, limit: float | None) -> None:
        self.limit, self._busy, self._since = limit, set(), time.monotonic()

    def note(self, message: Any, team: list[RankHandle]) -> None:
        """Note an order to the ranks, or a report from one."""
        if isinstance(message, Task):
            self._busy = {member.rank for member in team if member.alive}
        elif isinstance(message, (Returned, Raised, Died)):
            self._busy.discard(message.rank)
        self._since = time.monotonic()

    def is_over(self) -> bool:
        return self.limit is not None and not self._busy and time.monotonic() - self._since > self.limit


def _serve(team: list[RankHandle], notebook: NotebookLink, idle: Idleness, now: Callable[[], float]) -> None:
    """Forward messages in both directions until the notebook dismisses the ranks."""
    unanswered: dict[int, float] = {}
    unfinished_lines = UnfinishedLines()
    while True:
        controls = {member.control: member for member in team if member.alive}
        readers = {r.pipe: (m, r) for m in team if m.alive for r in m.readers if not r.closed}
        deaths = {member.death for member in team if member.alive and member.death is not None}
        for ready in wait([notebook.connection, *controls, *readers, *deaths], timeout=TICK):
            if ready in deaths:
                continue
            if ready in readers:
                member, reader = readers[ready]
                _forward_lines(notebook, member.rank, reader.read())
            elif ready in controls:
                _forward_report(controls[ready], notebook, unanswered, idle)
            elif (order := notebook.recv()) == LOCATE:
                unanswered = {m.rank: time.monotonic() + ANSWER_WITHIN for m in team if m.alive}
                _send_to_all(team, LOCATE)
            elif order == DISMISS:
                return _dismiss(team)
            else:
                if isinstance(order, Interrupt):
                    _wake_stopped(team)
                idle.note(order, team)
                _send_to_all(team, LOCATE if order == LOOK else order)
        unfinished_lines.forward(team, notebook)
        _report_deaths(team, notebook, idle, now)
        _signal_unresponsive(team, notebook, unanswered)
        if idle.is_over():
            notebook.send(SupervisorFailed(IDLE.format(idle.limit)))
            return _dismiss(team)


class UnfinishedLines:
    """The ranks' unfinished lines: a progress bar is overwritten for minutes before its line ends."""

    def __init__(self) -> None:
        self._forwarded: dict[int, str] = {}
        self._next = 0.0

    def forward(self, team: list[RankHandle], notebook: NotebookLink) -> None:
        """Forward the lines that have changed, at most every `SHOW_EVERY` seconds."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SHOW_EVERY
        for member in team:
            text = next(filter(None, (reader.unfinished() for reader in member.readers)), "")
            if text != self._forwarded.get(member.rank, ""):
                self._forwarded[member.rank] = text
                if text:
                    notebook.send(Unfinished(member.rank, text))


def _forward_report(member: RankHandle, notebook: NotebookLink, unanswered: dict[int, float], idle: Idleness) -> bool:
    """Forward a report from a rank. Returns False if the connection is broken."""
    try:
        report = member.control.recv()
    except (EOFError, OSError):
        return False  # the rank is dying, and its exit code will say how
    if isinstance(report, Located):
        unanswered.pop(member.rank, None)
    idle.note(report, [])
    _forward_lines(notebook, member.rank, member.drain())
    notebook.send(report)
    return True


def _forward_lines(notebook: NotebookLink, rank: int, lines: list[str]) -> None:
    if lines:
        notebook.send(Lines(rank, lines))


def _report_deaths(team: list[RankHandle], notebook: NotebookLink, idle: Idleness, now: Callable[[], float]) -> None:
    for member in team:
        if member.alive and (exitcode := member.exitcode()) is not None:
            member.alive = False
            member.kill()  # processes it left behind may hold its pipes
            while member.control_has_more() and _forward_report(member, notebook, {}, idle):
                pass
            _forward_lines(notebook, member.rank, member.drain())
            death = Died(member.rank, exitcode, member.stack(), at=now())
            idle.note(death, team)
            notebook.send(death)


def _signal_unresponsive(team: list[RankHandle], notebook: NotebookLink, unanswered: dict[int, float]) -> None:
    """Signal the ranks that don't answer. Even if no Python thread can run, the C handler dumps the stack."""
    for rank in [rank for rank, deadline in unanswered.items() if time.monotonic() > deadline]:
        del unanswered[rank]
        member = next(member for member in team if member.rank == rank)
        if not member.alive:
            continue
        if member.is_stopped():
            notebook.send(Located(rank, Where("stopped"), record=None))
            continue
        if hasattr(signal, "SIGUSR1"):
            os.kill(member.pid, signal.SIGUSR1)
            time.sleep(TICK)
        notebook.send(Located(rank, locate(member.stack()), record=None))


def _wake_stopped(team: list[RankHandle]) -> None:
    """Resume ranks that a signal has stopped, so that they can react."""
    for member in team:
        if member.alive and hasattr(signal, "SIGCONT"):
            with contextlib.suppress(OSError):
                os.kill(member.pid, signal.SIGCONT)


def _send_to_all(team: list[RankHandle], order: Any) -> None:
    for member in team:
        with contextlib.suppress(OSError):
            member.control.send(order)


def _dismiss(team: list[RankHandle]) -> None:
    _send_to_all(team, DISMISS)
    deadline = time.monotonic() + EXIT_WITHIN
    while (remaining := deadline - time.monotonic()) > 0:
        running = [member for member in team if member.exitcode() is None]
        if not running:
            return
        deaths = [member.death for member in running if member.death is not None]
        if deaths:
            wait(deaths, min(remaining, TICK))
        else:
            time.sleep(min(remaining, 0.005))


def _end(team: list[RankHandle]) -> None:
    """Kill the ranks, their process groups, and everything else they started."""
    for member in team:
        member.kill()
    for member in team:
        member.reap()
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


def _detach_from_notebook() -> None:
    """Survive signals to the notebook's process group, and adopt the processes that ranks leave behind."""
    if hasattr(os, "setsid"):
        os.setsid()
    if sys.platform.startswith("linux"):
        import ctypes

        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
