"""Train an LSTM on many GPUs: the library behind the course.

    from course_lib import launch
    run = launch(fn, ranks=4)

These packages follow the lessons, and each imports only from those before it:

runtime, launcher (00, 08), drawing, core, messages (00), one_device (01), data_parallel (02, 04), padding (03),
model_parallel (05), pipeline (06), sharding (07), clusters (08, 09), frameworks (10), transformer (12), train.
The others hold the exercises (lessons, checks) and the course's tools (command, lab, classroom, grading, authoring).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from course_lib.runtime import events, old_names
from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.classroom.learner import class_question, join_class, leave_class
    from course_lib.launcher import (
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
    from course_lib.runtime import trace
    from course_lib.runtime.machine import cores, device
    from course_lib.runtime.version import __version__

__getattr__, __dir__ = exports(__name__)
old_names.refuse()


def load_ipython_extension(shell: Any) -> None:
    """Register `%%ranks`. IPython calls this for `%load_ext course_lib`."""
    from course_lib.launcher.live import magic  # needs IPython, which a machine without notebooks may not have

    magic.load(shell)


def _tell_class(kind: str, **facts: Any) -> None:
    """Send an event to the class that this desk has joined, if any."""
    from course_lib.classroom.learner import tell  # only now: most programs have nothing to tell

    tell(kind, **facts)


events.subscribe(_tell_class)

if "ipykernel" in sys.modules:
    from course_lib.launcher import warm_up

    warm_up()
