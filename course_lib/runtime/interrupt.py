"""Make Ctrl-C end the `course` command without a traceback while it is still importing."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Iterator


def _exit_now(*_: object) -> None:
    os.write(2, b"course: interrupted\n")
    os._exit(130)  # nothing is running yet that needs cleanup


@contextlib.contextmanager
def exiting_on_interrupt() -> Iterator[None]:
    """Exit immediately on Ctrl-C inside the block, with garbage collection off. For imports, before anything runs.

    An exception in the middle of an import is not safe: some modules swallow it, others turn it into a different error.
    Imported modules are not garbage, and looking for garbage takes a tenth of the time of `import torch`.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    # A program that calls us may handle Ctrl-C itself.
    replaced = in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    collecting = gc.isenabled()
    gc.disable()
    if replaced:
        signal.signal(signal.SIGINT, _exit_now)
    try:
        yield
    finally:
        if replaced:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if collecting:
            gc.enable()
