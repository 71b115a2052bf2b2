"""A request to stop: a job that is asked to save what it has and to end, by a signal or through its launcher.

Whoever starts a job (the `course` command, a node of a Slurm job, a rank of torchrun's) takes the signal, and passes
it on to the ranks. What a rank's function does about it is its own affair: it asks `request.reason`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

FROM_A_SCHEDULER = ("SIGTERM", "SIGUSR1")
SIGNALS = (*FROM_A_SCHEDULER, "SIGHUP")
REQUEUE = 75  # the exit status of a job that has saved what it had and wants to go on: EX_TEMPFAIL, "try again later"


class StopRequest:
    """Whether this process was asked to stop, and by what; and whether its function has done so."""

    def __init__(self) -> None:
        self.reason = ""
        self.obeyed = False
        self._passes: list[Callable[[str], None]] = []

    def ask(self, reason: str) -> None:
        """Ask to stop; to ask again changes nothing."""
        if not self.reason:
            self.reason = reason
            for pass_on in list(self._passes):
                pass_on(reason)

    @contextlib.contextmanager
    def passed_on(self, pass_on: Callable[[str], None]) -> Iterator[None]:
        """In the block, whoever this process works with is asked, too."""
        self._passes.append(pass_on)
        try:
            if self.reason:
                pass_on(self.reason)
            yield
        finally:
            self._passes.remove(pass_on)


request = StopRequest()  # a process has one: signals are sent to a process


@contextlib.contextmanager
def asked_by_signals(*names: str) -> Iterator[None]:
    """In the block, these signals ask this process to stop, where the system has them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    request.reason, request.obeyed = "", False
    numbers = [getattr(signal, name) for name in names or SIGNALS if hasattr(signal, name)]
    numbers = [number for number in numbers if not _under_nohup(number)]
    before = {number: signal.signal(number, _ask) for number in numbers}
    try:
        yield
    finally:
        request.reason = ""
        for number, handler in before.items():
            signal.signal(number, handler)


def _under_nohup(number: int) -> bool:
    """Whether a hang-up is to be ignored, as whoever has started this program wants it."""
    return signal.Signals(number).name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN


def _ask(number: int, _: object) -> None:
    name = signal.Signals(number).name
    if name == "SIGHUP":
        _leave_terminal()
    request.ask(name)


def _leave_terminal() -> None:
    """Print no more into a terminal that is gone: that would be an error, and the end, before anything is saved."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        if os.isatty(stream):
            os.dup2(nowhere, stream)
    os.close(nowhere)
