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


def exit_while_importing() -> bool:
    """Make Ctrl-C exit immediately, until `raise_again`. Returns whether it did so: a program may handle it itself."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, _exit_now)
    return True


def raise_again() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again; the command catches it."""
    if signal.getsignal(signal.SIGINT) is _exit_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def exiting_on_interrupt() -> Iterator[None]:
    """Exit immediately on Ctrl-C inside the block, with garbage collection off. For imports, before anything runs.

    An exception in the middle of an import is not safe: some modules swallow it, others turn it into a different error.
    Imported modules are not garbage, and looking for garbage takes a tenth of the time of `import torch`.
    """
    replaced, collecting = exit_while_importing(), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if replaced:
            raise_again()
        if collecting:
            gc.enable()
