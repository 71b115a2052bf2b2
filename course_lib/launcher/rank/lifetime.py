"""Make a rank, which is a fork of a server, behave like a separate program: its input, output, seeds and exit.

A rank has no standard input; reading from it raises an error that says what to do instead. Its output is captured at
the file descriptor, so it includes `print`, `logging`, C code and child processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from course_lib.runtime import private_doors

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase as Connection


ADVICE = "a rank has no keyboard: ask before the launch, and pass the answer to the function as an argument"


class NoKeyboard(io.TextIOWrapper):
    """An empty standard input that raises an error with advice when a program reads a line."""

    def readline(self, size: int = -1, /) -> str:
        raise EOFError(ADVICE)


def become_a_program(folder: str, rank: int, stdout: Connection, stderr: Connection) -> None:
    """Make this fork of a server a program of its own, with two pipes as its output and no keyboard.

    It moves to a new process group, so that Ctrl-C in the notebook does not reach us and our children die with us.
    """
    private_doors.forget_exit_functions()  # a rank must not call the server's
    dump = open(os.path.join(folder, f"stack.{rank}"), "w")  # noqa: SIM115  (open until the process ends)
    faulthandler.enable(dump, all_threads=False)
    if hasattr(os, "setsid"):
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the server that we are forked from masks it
        faulthandler.register(signal.SIGUSR1, dump, all_threads=False)
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    for number, pipe, name in ((1, stdout, "stdout"), (2, stderr, "stderr")):
        if sys.platform == "win32":
            import msvcrt

            os.dup2(msvcrt.open_osfhandle(pipe.fileno(), 0), number)
        else:
            os.dup2(pipe.fileno(), number)
        stream = os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing != 0:
        os.close(nothing)
    sys.stdin = NoKeyboard(io.FileIO(0, closefd=False))


def seed_generators(seed: int | None) -> None:
    """Seed Python's, NumPy's and PyTorch's generators; None takes seeds from the operating system.

    Ranks are forks of one process, so otherwise they would all draw the same numbers, in every launch. A model that is
    never broadcast would then be the same on all ranks here, but not under torchrun.
    """
    import torch

    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(None if seed is None else seed % 2**32)
    if seed is None:
        torch.seed()
    else:
        torch.manual_seed(seed)


def value_of(fn: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return what the function returns, or None if it calls `sys.exit` without an error."""
    try:
        return fn(*args, **kwargs)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
        return None


def end_program() -> None:
    """Do what Python does when a program ends: wait for threads, call `atexit` functions, flush."""
    private_doors.wait_for_threads()
    run_exit_functions()


def run_exit_functions() -> None:
    """Call the rank's `atexit` functions, and flush its loggers and streams."""
    private_doors.call_exit_functions()
    logging.shutdown()
    flush()


def flush() -> None:
    """Flush this process's stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a program may have closed or replaced it
            stream.flush()
