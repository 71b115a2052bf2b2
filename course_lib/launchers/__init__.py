"""Run one function on many ranks: on this machine, on a Slurm cluster, or as a job under torchrun."""

from course_lib.launchers.diagnosis.errors import (
    CannotSend,
    CollectivesDiffer,
    Detached,
    LaunchError,
    PeersLost,
    RankDied,
    RankFailed,
    RanksStuck,
)
from course_lib.launchers.live.team import Team, ranks
from course_lib.launchers.local import launch, warm_up
from course_lib.launchers.run import Run
from course_lib.launchers.slurm import Slurm, slurm

__all__ = [
    "CannotSend", "CollectivesDiffer", "Detached", "LaunchError", "PeersLost", "RankDied", "RankFailed", "RanksStuck",
    "Run", "Slurm", "Team", "launch", "ranks", "slurm", "warm_up",
]  # fmt: skip
