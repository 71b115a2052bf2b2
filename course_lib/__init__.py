"""Train an LSTM on many GPUs: the library behind the course.

from course_lib import launch

run = launch(fn, ranks=4)

Each name is imported from its home when it is first used, so a program pays only for what it needs.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from course_lib import events

if TYPE_CHECKING:
    from course_lib import trace
    from course_lib.classroom.learner import class_question, join_class, leave_class
    from course_lib.launchers import (
        CannotSend,
        CollectivesDiffer,
        LaunchError,
        PeersLost,
        RankDied,
        RankFailed,
        RanksStuck,
        Run,
        launch,
        ranks,
        slurm,
    )
    from course_lib.machine import cores, device
    from course_lib.version import __version__

__all__ = [
    "CannotSend", "CollectivesDiffer", "LaunchError", "PeersLost", "RankDied", "RankFailed", "RanksStuck", "Run",
    "__version__", "class_question", "cores", "device", "join_class", "launch", "leave_class",
    "load_ipython_extension", "ranks", "slurm", "trace",
]  # fmt: skip

_HOMES = {"__version__": "version", "cores": "machine", "device": "machine"} | dict.fromkeys(
    ("class_question", "join_class", "leave_class"), "classroom.learner"
)


def __getattr__(name: str) -> Any:
    if name == "trace":
        return importlib.import_module("course_lib.trace")
    if name not in __all__:
        raise AttributeError(f"module 'course_lib' has no attribute {name!r}")
    return getattr(importlib.import_module(f"course_lib.{_HOMES.get(name, 'launchers')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Register `%%ranks`. IPython calls this for `%load_ext course_lib`."""
    from course_lib.launchers.live import magic  # needs IPython, which a machine without notebooks may not have

    magic.load(shell)


def _tell_class(kind: str, **facts: Any) -> None:
    """Send an event to the class that this desk has joined, if any."""
    from course_lib.classroom.learner import tell  # only now: most programs have nothing to tell

    tell(kind, **facts)


events.subscribe(_tell_class)

if "ipykernel" in sys.modules:
    from course_lib.launchers import warm_up

    warm_up()
