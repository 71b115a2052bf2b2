"""Decide which rank is to blame: turn all ranks' reports into the one error to show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from course_lib.launchers.diagnosis.deadlock import Difference, odd_caller
from course_lib.launchers.diagnosis.errors import CannotSend, CollectivesDiffer, LaunchError, RankDied, RankFailed
from course_lib.launchers.diagnosis.lost_peers import CONSEQUENCE
from course_lib.launchers.diagnosis.record import Call, Message
from course_lib.launchers.diagnosis.stacks import Where, where
from course_lib.launchers.process import messages
from course_lib.launchers.process.messages import Died, Raised

# Not a root cause either, but it names the rank that is: rank 0 raises it from `dist.monitored_barrier`.
NAMES_THE_MISSING = re.compile(r"Ranks? [\d, ]+ failed to pass monitoredBarrier")


def verdict(
    raised: Sequence[Raised],
    died: Sequence[Died],
    located: Mapping[int, Where],
    disagreement: Difference | None = None,
) -> LaunchError:
    """Return the error that explains the failure. `disagreement` is the first collective on which ranks differed."""
    causes = [report for report in raised if not CONSEQUENCE.search(report.text)]
    if disagreement:  # anything a rank raised after that is a consequence of wrong numbers
        return _collectives_differ(disagreement, raised, died, located)
    first = died[0] if died else None
    if first and not any(report.at < first.at for report in causes):  # otherwise its death is a consequence
        last = located.get(first.rank)
        stack = first.stack or ([last.frame] if last and last.frame else [])
        return RankDied(rank=first.rank, exitcode=first.exitcode, stack=stack)
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
    raised, exception = (first.type_name, first.text), _exception(first)
    return RankFailed(message, rank=first.rank, exception=exception, stack=first.stack, also=also, raised=raised)


def _collectives_differ(
    disagreement: Difference, raised: Sequence[Raised], died: Sequence[Died], located: Mapping[int, Where]
) -> CollectivesDiffer:
    calls = {rank: str(call) for rank, call in disagreement.items()}
    places = {rank: _place(state, disagreement.get(rank)) for rank, state in located.items()}
    places |= {report.rank: str(where(report.stack).frame or "") for report in raised}
    for report in died:
        calls.setdefault(report.rank, "died")
    causes = [report for report in raised if not CONSEQUENCE.search(report.text)]
    after = [f"rank {report.rank} then raised {report.type_name}: {report.text}" for report in causes[:1]]
    return CollectivesDiffer(odd=odd_caller(disagreement), calls=calls, places=places, after="".join(after))


def _place(state: Where, call: Call | Message | None) -> str:
    """Return where a rank is: inside the call in question, or already past it."""
    if state.frame is None:
        return ""
    return f"now at {state.frame}" if isinstance(call, Call) and call.finished else str(state.frame)


def _exception(report: Raised) -> BaseException | None:
    if report.exception is None:
        return None
    try:
        return messages.unpack(report.exception)
    except Exception:
        return None
