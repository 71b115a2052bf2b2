"""What the server that ranks are forked from imports first. Importing this module does it, in the server alone.

A rank needs torch; what trains a model needs twice as much (`torch._dynamo` alone takes torch's time once more). A
launch waits for everything, because its ranks would each import it again. Somebody who opens live ranks looks at the
first cell, so `ranks` hurries the server: it forks as soon as torch is there, and imports the rest afterwards.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from course_lib.launchers.process.folders import HURRY_FILE

NEEDED = (
    *("torch", "torch.distributed", "torch.nn.parallel"),
    *("course_lib.launchers.process.supervisor", "course_lib.launchers.live.rank"),
)
# torch imports `_dynamo` when a model is first wrapped or optimized; a rank that has to import our strategies itself
# starts a tenth of a second later.
REST = (
    *("torch._dynamo", "torch.distributed.fsdp"),
    *("course_lib.training", "course_lib.training.checkpoint.planners"),
)
GO_ON_AFTER = 1.0  # seconds without an import, so that somebody in a hurry is served


def load(needed: Sequence[str], rest: Sequence[str], hurry: Path) -> list[str]:
    """Import the modules, and return those of the rest that are left because somebody is in a hurry."""
    left = [*needed, *rest]
    while left and not (hurry.exists() and len(left) <= len(rest)):
        with contextlib.suppress(ImportError):  # the rank that needs it says what is missing
            importlib.import_module(left[0])
        del left[0]
    gc.freeze()  # a rank that collects its garbage leaves the modules alone: to touch them is to copy them
    return left


def load_in_server(hurry: Path) -> None:
    """Import everything. If somebody is in a hurry, import the rest later, one module at a time."""
    gc.disable()  # a tenth of the time of `import torch`
    left = load(NEEDED, REST, hurry)
    gc.enable()
    if not left:
        return

    def go_on(*_: object) -> None:
        if not hurry.exists():
            load(left[:1], (), hurry)
            del left[0]
        signal.setitimer(signal.ITIMER_REAL, GO_ON_AFTER if left else 0)

    def forget() -> None:  # a timer is not inherited, but its handler is
        if signal.getsignal(signal.SIGALRM) is go_on:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=forget)
    signal.signal(signal.SIGALRM, go_on)
    signal.setitimer(signal.ITIMER_REAL, GO_ON_AFTER)


if HURRY_FILE in os.environ:
    load_in_server(Path(os.environ.pop(HURRY_FILE)))
