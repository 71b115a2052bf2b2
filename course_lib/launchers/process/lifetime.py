"""A rank is a program of its own, though it is a fork of a server: in what it inherits, what it draws, how it ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import logging
import os
import random
import signal
import sys
import threading
import traceback
from typing import NoReturn


def stand_alone(folder: str, rank: int) -> None:
    """A process group of our own: an interrupt meant for the notebook passes us by, and our children die with us."""
    atexit._clear()  # what the server has registered for its own exit is not the rank's
    dump = open(os.path.join(folder, f"stack.{rank}"), "w")  # noqa: SIM115  (open as long as the process)
    faulthandler.enable(dump, all_threads=False)
    if hasattr(os, "setsid"):
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(signal.SIGUSR1, dump, all_threads=False)
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def seed_generators(seed: int | None) -> None:
    """Seed Python's, NumPy's and PyTorch's generators; with None, each from the operating system's randomness.

    Ranks are forks of one process. Left alone, all of them would draw the same numbers, in every launch; ranks that
    torchrun starts do not, and a model that nobody broadcasts would be the same everywhere only here.
    """
    import torch

    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(None if seed is None else seed % 2**32)
    if seed is None:
        torch.seed()
    else:
        torch.manual_seed(seed)


def leave_as_child(error: BaseException | None = None) -> NoReturn:
    """End a process that the learner's function forked, and that returned from it or raised: it is not the rank."""
    if error is not None:
        traceback.print_exception(error)
    flush()
    os._exit(error is not None)


def end_program() -> None:
    """What Python does when a program ends: wait for its threads, call what was registered for the exit, flush."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  (executors learn from it that they are done)
    run_exit_functions()


def run_exit_functions() -> None:
    """Call what the rank has registered with `atexit`, and let loggers write what they hold back."""
    atexit._run_exitfuncs()
    logging.shutdown()
    flush()


def flush() -> None:
    """Write out what this process has printed and not yet written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a program may have closed or replaced it
            stream.flush()
