"""The modules that the fork server imports in advance. In that server, importing this module imports all of them.

A rank needs torch; importing what trains a model takes twice as long (`torch._dynamo` alone takes as long as torch).
A launch waits for everything, because otherwise each rank would import it again. Live ranks should run their first cell
soon, so `ranks` hurries the server: it forks as soon as torch is imported, and imports the rest afterwards.
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
    *("course_lib.launchers.process.supervisor", "course_lib.launchers.live.tasks"),
)
# torch imports `_dynamo` when a model is first wrapped or optimized; a rank that has to import our strategies itself
# starts a tenth of a second later.
REST = (
    *("torch._dynamo", "torch.distributed.fsdp"),
    *("course_lib.training", "torch.distributed.checkpoint"),
)
NEXT_IMPORT_AFTER = 1.0  # seconds between two imports, in which the server can fork for a caller in a hurry


def load(needed: Sequence[str], rest: Sequence[str], hurry: Path) -> list[str]:
    """Import the modules, and return those of `rest` that are still missing because a caller is in a hurry."""
    remaining = [*needed, *rest]
    while remaining and not (hurry.exists() and len(remaining) <= len(rest)):
        with contextlib.suppress(ImportError):  # the rank that needs it reports what is missing
            importlib.import_module(remaining[0])
        del remaining[0]
    gc.freeze()  # otherwise a rank's garbage collector would touch the modules, and so copy their memory
    return remaining


def load_in_server(hurry: Path) -> None:
    """Import everything. If a caller is in a hurry, import the rest later, one module at a time."""
    gc.disable()  # it would take a tenth of the time of `import torch`
    remaining = load(NEEDED, REST, hurry)
    gc.enable()
    if not remaining:
        return

    def load_next(*_: object) -> None:
        if not hurry.exists():
            load(remaining[:1], (), hurry)
            del remaining[0]
        signal.setitimer(signal.ITIMER_REAL, NEXT_IMPORT_AFTER if remaining else 0)

    def remove_timer() -> None:  # a timer is not inherited, but its handler is
        if signal.getsignal(signal.SIGALRM) is load_next:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=remove_timer)
    signal.signal(signal.SIGALRM, load_next)
    signal.setitimer(signal.ITIMER_REAL, NEXT_IMPORT_AFTER)


if HURRY_FILE in os.environ:
    load_in_server(Path(os.environ.pop(HURRY_FILE)))
