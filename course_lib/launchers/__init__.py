"""Run one function on many ranks: on this machine from a cell, or as a job under torchrun."""

from course_lib.launchers.errors import CannotSend, CollectivesDiffer, LaunchError, RankDied, RankFailed, RanksStuck
from course_lib.launchers.local import launch, warm_up
from course_lib.launchers.run import Run

__all__ = [
    "CannotSend",
    "CollectivesDiffer",
    "LaunchError",
    "RankDied",
    "RankFailed",
    "RanksStuck",
    "Run",
    "launch",
    "warm_up",
]
