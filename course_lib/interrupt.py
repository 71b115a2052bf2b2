"""Ctrl-C in the first moments of the `course` command, while it still imports: it ends, without a traceback.

The package imports this first. It changes nothing for a program that merely imports the library.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def leave(*_: object) -> None:
    """End here and now: nothing runs yet."""
    os.write(2, b"course: interrupted\n")
    os._exit(130)


def is_the_command() -> bool:
    """Whether this program is `course`, or `python -m course_lib`."""
    name = sys.argv[0] if sys.argv else ""
    return os.path.basename(name) == "course" or (name == "-m" and "course_lib" in sys.orig_argv)


def take_over() -> None:
    """From now on an interrupt is an exception again: the command catches it."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if (
    is_the_command()
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, leave)
