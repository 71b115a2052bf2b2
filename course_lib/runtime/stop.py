"""Requests to stop, in any process of a launch: a signal, or the launcher, asks a job to save its state and end.

The process that starts a job (the `course` command, a node of a Slurm job, a rank under torchrun) receives the signal
and forwards it to the ranks. A rank's function checks `request.reason` and decides what to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

FROM_A_SCHEDULER = ("SIGTERM", "SIGUSR1")
SIGNALS = (*FROM_A_SCHEDULER, "SIGHUP")
REQUEUE = 75  # exit status of a job that has saved its state and wants to continue: EX_TEMPFAIL, "try again later"


class StopRequest:
    """Whether this process was asked to stop, by what, and whether its function did."""

    def __init__(self) -> None:
        self.reason = ""
        self.obeyed = False
        self._passes: list[Callable[[str], None]] = []

    def ask(self, reason: str) -> None:
        """Request a stop. Further requests have no effect."""
        if not self.reason:
            self.reason = reason
            for pass_on in list(self._passes):
                pass_on(reason)

    @contextlib.contextmanager
    def passed_on(self, pass_on: Callable[[str], None]) -> Iterator[None]:
        """Forward requests to `pass_on` inside the block."""
        self._passes.append(pass_on)
        try:
            if self.reason:
                pass_on(self.reason)
            yield
        finally:
            self._passes.remove(pass_on)


request = StopRequest()  # one per process, because signals are sent to a process


@contextlib.contextmanager
def asked_by_signals(*names: str) -> Iterator[None]:
    """Inside the block, treat these signals as requests to stop, if the system has them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    request.reason, request.obeyed = "", False
    before = {}
    for number in (getattr(signal, name) for name in names or SIGNALS if hasattr(signal, name)):
        under_nohup = number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN
        if not under_nohup:
            before[number] = signal.signal(number, _ask)
    try:
        yield
    finally:
        request.reason = ""
        for number, handler in before.items():
            signal.signal(number, handler)


def _ask(number: int, _: object) -> None:
    name = signal.Signals(number).name
    if name == "SIGHUP":  # printing to a terminal that is gone would raise, and end the program before it has saved
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            if os.isatty(stream):
                os.dup2(nowhere, stream)
        os.close(nowhere)
    request.ask(name)
