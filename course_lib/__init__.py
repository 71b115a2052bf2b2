"""Train an LSTM on many GPUs: the library under the course.

from course_lib import launch

run = launch(fn, ranks=4)
"""

import sys

from course_lib import interrupt, trace
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
from course_lib.membership import join_class, leave_class
from course_lib.version import __version__

__all__ = [
    "CannotSend",
    "CollectivesDiffer",
    "LaunchError",
    "PeersLost",
    "RankDied",
    "RankFailed",
    "RanksStuck",
    "Run",
    "__version__",
    "cores",
    "device",
    "interrupt",
    "join_class",
    "launch",
    "leave_class",
    "slurm",
    "trace",
]

if "ipykernel" in sys.modules:
    warm_up()
