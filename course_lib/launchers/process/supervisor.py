"""The process between a notebook and its ranks: it starts them, passes on what they say, and ends them.

There is one supervisor per launch, and everything of the launch hangs off it. It runs none of the
learner's code, so nothing a rank does can stop it; when the notebook closes the connection, or is killed,
the supervisor ends every process that its ranks have started, and then itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, cast

from course_lib import machine
from course_lib.launchers.diagnosis.stacks import Frame, stack_of_dump, where
from course_lib.launchers.process import rank as rank_module
from course_lib.launchers.process.messages import DISMISS, LOCATE, Died, LaunchSpec, Lines, Located
from course_lib.launchers.process.output import LineReader

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase as Connection  # a pipe's end has another class on Windows
    from multiprocessing.context import ForkContext, SpawnContext

TICK = 0.05  # how often to look whether a rank has died: its pipes may live on in its children
ANSWER_WITHIN = 1.0  # a rank that is silent for longer holds the interpreter's lock
LEAVE_WITHIN = 2.0  # how long a dismissed rank may take to end its threads


def supervise(spec: LaunchSpec, notebook: Connection, start_method: str) -> None:
    """Run one launch. Returns when the ranks were dismissed or the notebook has gone."""
    _detach_from_notebook()
    os.environ.clear()
    os.environ.update(spec.environment)
    os.chdir(spec.folder)
    if "torch" in sys.modules:  # it was there before the fork, and may count the GPUs for all ranks
        os.environ[machine.COUNTED_GPUS] = str(machine.gpus())
    with tempfile.TemporaryDirectory(prefix="course_lib-", ignore_cleanup_errors=True) as folder:
        team: list[RankHandle] = []
        try:
            # The stubs know a context's class only where its method is written out.
            context = cast("ForkContext | SpawnContext", multiprocessing.get_context(start_method))
            for rank in spec.here:
                team.append(RankHandle(rank, spec, folder, context))
            _serve(team, notebook)
        except (EOFError, OSError):
            pass  # the notebook has hung up
        finally:
            _end(team)


class RankHandle:
    """One rank, as its supervisor sees it: a process and three pipes."""

    def __init__(self, rank: int, spec: LaunchSpec, folder: str, context: ForkContext | SpawnContext) -> None:
        self.rank = rank
        self.dump = Path(folder, f"stack.{rank}")
        self.alive = True
        self.control: Connection
        self.control, control = context.Pipe()
        stdout_reader, stdout = context.Pipe(duplex=False)
        stderr_reader, stderr = context.Pipe(duplex=False)
        ends = (control, stdout, stderr)
        self.process = context.Process(target=rank_module.main, args=(rank, spec, folder, *ends), name=f"rank {rank}")
        self.process.start()
        assert self.process.pid is not None  # as soon as it is started
        self.pid = self.process.pid
        for end in ends:
            end.close()
        self.readers = [LineReader(stdout_reader), LineReader(stderr_reader)]

    def stack(self) -> list[Frame]:
        """What `faulthandler` has written of this rank."""
        return stack_of_dump(self.dump.read_text(errors="replace")) if self.dump.exists() else []

    def drain(self, notebook: Connection) -> None:
        """Pass on all that the rank has printed so far."""
        for reader in self.readers:
            _pass_on(notebook, self.rank, reader.read_all())

    def kill(self) -> None:
        """End the rank and every process in its group."""
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.kill()


def _serve(team: list[RankHandle], notebook: Connection) -> None:
    """Pass messages both ways until the notebook dismisses the ranks."""
    unanswered: dict[int, float] = {}
    while True:
        controls = {member.control: member for member in team if member.alive}
        readers = {r.pipe: (m, r) for m in team if m.alive for r in m.readers if not r.closed}
        for ready in wait([notebook, *controls, *readers], timeout=TICK):
            if ready in readers:
                member, reader = readers[ready]
                _pass_on(notebook, member.rank, reader.read())
            elif ready in controls:
                _pass_report(controls[ready], notebook, unanswered)
            elif (order := notebook.recv()) == LOCATE:
                unanswered = {m.rank: time.monotonic() + ANSWER_WITHIN for m in team if m.alive}
                _tell(team, LOCATE)
            elif order == DISMISS:
                return _dismiss(team)
        _look_for_the_dead(team, notebook)
        _ask_the_silent(team, notebook, unanswered)


def _pass_report(member: RankHandle, notebook: Connection, unanswered: dict[int, float]) -> None:
    try:
        report = member.control.recv()
    except (EOFError, OSError):
        return  # it is dying: its exit code will say how
    if isinstance(report, Located):
        unanswered.pop(member.rank, None)
    member.drain(notebook)
    notebook.send(report)


def _pass_on(notebook: Connection, rank: int, lines: list[str]) -> None:
    if lines:
        notebook.send(Lines(rank, lines))


def _look_for_the_dead(team: list[RankHandle], notebook: Connection) -> None:
    for member in team:
        if member.alive and member.process.exitcode is not None:
            member.alive = False
            member.drain(notebook)
            notebook.send(Died(member.rank, member.process.exitcode, member.stack()))


def _ask_the_silent(team: list[RankHandle], notebook: Connection, unanswered: dict[int, float]) -> None:
    """A rank whose threads cannot run still dumps its stack on a signal: the handler is C code."""
    for rank in [rank for rank, due in unanswered.items() if time.monotonic() > due]:
        del unanswered[rank]
        member = next(member for member in team if member.rank == rank)
        if hasattr(signal, "SIGUSR1"):
            os.kill(member.pid, signal.SIGUSR1)
            time.sleep(TICK)
        notebook.send(Located(rank, where(member.stack()), calls=[]))


def _tell(team: list[RankHandle], order: str) -> None:
    for member in team:
        with contextlib.suppress(OSError):
            member.control.send(order)


def _dismiss(team: list[RankHandle]) -> None:
    _tell(team, DISMISS)
    deadline = time.monotonic() + LEAVE_WITHIN
    for member in team:
        member.process.join(max(0.0, deadline - time.monotonic()))


def _end(team: list[RankHandle]) -> None:
    """Leave nothing behind: the ranks, their groups, and whatever else they started."""
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


def _detach_from_notebook() -> None:
    """Outlive a signal to the notebook's process group, and inherit what the ranks leave behind."""
    if hasattr(os, "setsid"):
        os.setsid()
    if sys.platform.startswith("linux"):
        import ctypes

        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
