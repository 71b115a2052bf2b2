"""Decide which rank is to blame, among those that raised or died."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence

from course_lib.launcher.hangs.deadlock import Difference, odd_caller
from course_lib.launcher.hangs.errors import (
    CONSEQUENCE,
    CannotSend,
    CollectivesDiffer,
    LaunchError,
    RankDied,
    RankFailed,
)
from course_lib.launcher.hangs.record import LoggedCall
from course_lib.launcher.hangs.stacks import Where, locate
from course_lib.launcher.wire import pickling
from course_lib.launcher.wire.messages import Died, Raised

# Not a root cause either, but it names the rank that is: rank 0 raises it from `dist.monitored_barrier`.
NAMES_THE_MISSING = re.compile(r"Ranks? [\d, ]+ failed to pass monitoredBarrier")


def verdict(
    raised: Sequence[Raised],
    died: Sequence[Died],
    located: Mapping[int, Where],
    disagreement: Difference | None = None,
    before: str = "its function returned",
) -> LaunchError:
    """Return the error that explains the failure. `disagreement` is the first collective on which ranks differed.

    `before` says what was unfinished if a rank died.
    """
    causes = [report for report in raised if not CONSEQUENCE.search(report.text)]
    if disagreement:
        return _collectives_differ(disagreement, raised, died, located, causes)
    first = died[0] if died else None
    if first and not any(report.at < first.at for report in causes):  # otherwise its death is a consequence
        last = located.get(first.rank)
        stack = first.stack or ([last.frame] if last and last.frame else [])
        return RankDied(rank=first.rank, exitcode=first.exitcode, stack=stack, before=before)
    witnesses = [report for report in raised if NAMES_THE_MISSING.search(report.text)]
    return _rank_failed(causes or witnesses or raised)


def _rank_failed(causes: Sequence[Raised]) -> LaunchError:
    """Return the error of the first rank to raise; if all raised the same, the lowest rank's, for a stable message."""
    alike = len({(report.type_name, report.text) for report in causes}) == 1
    first = min(causes, key=lambda report: report.rank if alike else report.at)
    if first.type_name == CannotSend.__name__:
        return CannotSend(f"rank {first.rank}: {first.text}")
    message = f"{first.type_name}: {first.text}" if first.text else first.type_name
    also = sorted(report.rank for report in causes if report is not first)
    raised, exception = (first.type_name, first.text), None
    if first.exception is not None:
        with contextlib.suppress(Exception):  # its class may not be importable here
            exception = pickling.unpack(first.exception)
    return RankFailed(message, rank=first.rank, exception=exception, stack=first.stack, also=also, raised=raised)


def _collectives_differ(
    disagreement: Difference,
    raised: Sequence[Raised],
    died: Sequence[Died],
    located: Mapping[int, Where],
    causes: Sequence[Raised],
) -> CollectivesDiffer:
    """Return an error with every rank's call. Anything a rank raised after it is a consequence of wrong numbers."""
    calls = {report.rank: "died" for report in died} | {rank: str(call) for rank, call in disagreement.items()}
    places = {}
    for rank, state in located.items():
        call = disagreement.get(rank)
        past_it = isinstance(call, LoggedCall) and call.finished
        places[rank] = "" if state.frame is None else f"{'now at ' if past_it else ''}{state.frame}"
    places |= {report.rank: str(locate(report.stack).frame or "") for report in raised}
    after = "".join(f"rank {report.rank} then raised {report.type_name}: {report.text}" for report in causes[:1])
    return CollectivesDiffer(odd=odd_caller(disagreement), calls=calls, places=places, after=after)
