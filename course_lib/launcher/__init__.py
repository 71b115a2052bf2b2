"""Run one function on many ranks: on this machine, on a Slurm cluster, or as a job under torchrun (lessons 00 and 08).

Three processes work together, and a folder says which one runs its code: `notebook` calls `launch` and listens,
`supervisor` starts the ranks and ends them, `rank` joins the process group and runs your function; `wire` is what
travels between them. Read `notebook.launch`, `supervisor.supervisor` and `rank.main`; then `hangs`, which finds out
who waits for whom.
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
    from course_lib.launcher.wire.run import Run

__getattr__, __dir__ = exports(__name__)
