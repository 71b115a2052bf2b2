"""Train an LSTM on many GPUs: the library behind the course.

from course_lib import launch

run = launch(fn, ranks=4)
"""

import sys
from typing import Any

from course_lib import events, interrupt, trace
from course_lib.classroom.learner import class_question, join_class, leave_class, tell
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
    warm_up,
)
from course_lib.machine import cores, device
from course_lib.version import __version__

__all__ = [
    "CannotSend", "CollectivesDiffer", "LaunchError", "PeersLost", "RankDied", "RankFailed", "RanksStuck", "Run",
    "__version__", "class_question", "cores", "device", "interrupt", "join_class", "launch", "leave_class",
    "load_ipython_extension", "ranks", "slurm",
    "trace",
]  # fmt: skip


def load_ipython_extension(shell: Any) -> None:
    """Register `%%ranks`. IPython calls this for `%load_ext course_lib`."""
    from course_lib.launchers.live import magic  # needs IPython, which a machine without notebooks may not have

    magic.load(shell)


events.subscribe(tell)  # reports to the class this desk has joined, if any

if "ipykernel" in sys.modules:
    warm_up()
