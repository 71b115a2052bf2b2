"""Train an LSTM on many GPUs: the library behind the course.

from course_lib import launch

run = launch(fn, ranks=4)
"""

import sys

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
    slurm,
    warm_up,
)
from course_lib.machine import cores, device
from course_lib.version import __version__

__all__ = [
    "CannotSend", "CollectivesDiffer", "LaunchError", "PeersLost", "RankDied", "RankFailed", "RanksStuck", "Run",
    "__version__", "class_question", "cores", "device", "interrupt", "join_class", "launch", "leave_class", "slurm",
    "trace",
]  # fmt: skip

events.subscribe(tell)  # reports to the class this desk has joined, if any

if "ipykernel" in sys.modules:
    warm_up()
