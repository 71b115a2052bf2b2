"""Make Ctrl-C end the `course` command without a traceback while it is still importing.

The package imports this module first. It has no effect on a program that merely imports the library.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator


def exit_now(*_: object) -> None:
    """Exit immediately; nothing is running yet that needs cleanup."""
    os.write(2, b"course: interrupted\n")
    os._exit(130)


def is_the_command() -> bool:
    """Return whether this program is `course` or `python -m course_lib`."""
    name = sys.argv[0] if sys.argv else ""
    return os.path.basename(name) == "course" or (name == "-m" and "course_lib" in sys.orig_argv)


def take_over() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again; the command catches it."""
    if signal.getsignal(signal.SIGINT) is exit_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _has_default_handler() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextlib.contextmanager
def exiting_on_interrupt() -> Iterator[None]:
    """Exit immediately on Ctrl-C inside the block, with garbage collection off. For imports, before anything runs.

    An exception in the middle of an import is not safe: some modules swallow it, others turn it into a different error.
    Imported modules are not garbage, and looking for garbage takes a tenth of the time of `import torch`.
    """
    replace_handler, collecting = _has_default_handler(), gc.isenabled()
    gc.disable()
    if replace_handler:
        signal.signal(signal.SIGINT, exit_now)
    try:
        yield
    finally:
        if replace_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if collecting:
            gc.enable()


if is_the_command() and _has_default_handler():
    signal.signal(signal.SIGINT, exit_now)
