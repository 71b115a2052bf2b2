"""How a command ends that could not do what it was asked: one sentence, and an exit status."""

from __future__ import annotations

import contextlib
import sys

from course_lib.cli.arguments import one_line
from course_lib.launchers import Detached, LaunchError

HUNG_UP = 129  # as a shell has it for a program that a hang-up has ended


def complain(error: Exception | str, status: int = 1) -> int:
    """Say what is wrong: in one line, but for what somebody's own function or file has raised."""
    told = f"{type(error).__name__}: {error}" if isinstance(error, LaunchError) else one_line(str(error))
    print(f"course: {told}", file=sys.stderr)
    return status


def detached(error: Detached) -> int:
    """Say how to look at a job that goes on; where it is said to nobody, the job's own output says so, too."""
    with contextlib.suppress(OSError):
        complain(str(error))
    return HUNG_UP


def interrupted(more: str = "") -> int:
    """Say so."""
    print(f"course: interrupted{more}", file=sys.stderr)
    return 130
