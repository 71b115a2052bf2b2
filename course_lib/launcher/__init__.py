"""Run one function on many ranks: on this machine, on a Slurm cluster, or as a job under torchrun (lessons 00 and 08).

A folder says which process runs its code: `notebook` (or a script) calls `launch` and listens, the `supervisor` starts
and ends the ranks, and each `rank` joins the process group and runs your function; `wire` is what travels between them.
Read `notebook.launch`, `supervisor.supervisor`, `rank.main`, `notebook.listener`; then `hangs`: why a launch failed.
Later: `live` keeps ranks alive between cells, `jobs` runs them on clusters, `tracing` records what they did, and when.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.launcher.hangs.errors import (
        CannotSend,
        CollectivesDiffer,
        Detached,
        LaunchError,
        PeersLost,
        RankDied,
        RankFailed,
        RanksStuck,
    )
    from course_lib.launcher.jobs.slurm import Slurm, slurm
    from course_lib.launcher.live.team import Team, ranks
    from course_lib.launcher.notebook.launch import launch, warm_up
    from course_lib.launcher.notebook.run import Run

__getattr__, __dir__ = exports(__name__)
