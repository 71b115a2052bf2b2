"""Make Ctrl-C end the `course` command without a traceback while it is still importing.

The package imports this module first. It has no effect on a program that merely imports the library.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def leave(*_: object) -> None:
    """Exit immediately; nothing is running yet that needs cleanup."""
    os.write(2, b"course: interrupted\n")
    os._exit(130)


def is_the_command() -> bool:
    """Return whether this program is `course` or `python -m course_lib`."""
    name = sys.argv[0] if sys.argv else ""
    return os.path.basename(name) == "course" or (name == "-m" and "course_lib" in sys.orig_argv)


def take_over() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again; the command catches it."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if (
    is_the_command()
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, leave)
