"""Decide which rank is to blame, among those that raised or died and those that no longer answer.

gloo reports "Timed out waiting 5000ms for recv operation to complete", but not for which rank. Ranks on several
machines share a store, hosted on rank 0's machine. Each rank that gives up signs a roster there; the ranks that don't
sign are lost. A rank that cannot even reach the store has lost the machine that hosts it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from course_lib.launchers.diagnosis.deadlock import Difference, odd_caller
from course_lib.launchers.diagnosis.errors import (
    CannotSend,
    CollectivesDiffer,
    LaunchError,
    PeersLost,
    RankDied,
    RankFailed,
)
from course_lib.launchers.diagnosis.record import LoggedCall
from course_lib.launchers.diagnosis.stacks import Where, locate, stack_of_exception
from course_lib.launchers.process import pickling
from course_lib.launchers.process.messages import Died, Raised

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

# Errors from gloo, NCCL and gRPC that a rank sees when a peer is gone. They are never the root cause.
CONSEQUENCE = re.compile(
    r"Connection (closed|reset|refused)|connection was lost|Timed out waiting|Broken pipe|"
    r"Read error|Application timeout caused pair closure|monitoredBarrier|NCCL .*remote error|"
    r"Socket closed|failed to connect to all addresses|heartbeat",
    re.IGNORECASE,
)

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
    if disagreement:  # anything a rank raised after that is a consequence of wrong numbers
        return _collectives_differ(disagreement, raised, died, located)
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
    disagreement: Difference, raised: Sequence[Raised], died: Sequence[Died], located: Mapping[int, Where]
) -> CollectivesDiffer:
    calls = {rank: str(call) for rank, call in disagreement.items()}
    places = {}
    for rank, state in located.items():
        call = disagreement.get(rank)
        past_it = isinstance(call, LoggedCall) and call.finished
        places[rank] = "" if state.frame is None else f"{'now at ' if past_it else ''}{state.frame}"
    places |= {report.rank: str(locate(report.stack).frame or "") for report in raised}
    for report in died:
        calls.setdefault(report.rank, "died")
    causes = [report for report in raised if not CONSEQUENCE.search(report.text)]
    after = [f"rank {report.rank} then raised {report.type_name}: {report.text}" for report in causes[:1]]
    return CollectivesDiffer(odd=odd_caller(disagreement), calls=calls, places=places, after="".join(after))


SIGN_WITHIN = 3.0  # seconds; ranks that wait in the same collective give up at about the same time
LOOK_EVERY = 0.2


class PeerRoster:
    """All ranks of a job and their hosts. Every rank creates one right after the rendezvous."""

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self.store, self.rank, self.ranks = store, rank, ranks
        store.set(f"host of {rank}", socket.gethostname())
        self.hosts = [store.get(f"host of {peer}").decode() for peer in range(ranks)]

    def explain(self, error: BaseException) -> PeersLost | None:
        """Return a `PeersLost` that names the lost ranks, or None if lost ranks are not why `error` was raised."""
        if not CONSEQUENCE.search(str(error)):
            return None
        lost = self._lost_ranks()
        if not lost:
            return None  # every rank gave up, so they were waiting for each other
        place = locate(stack_of_exception(error.__traceback__)).frame
        hosts = " and ".join(dict.fromkeys(self.hosts[rank] for rank in lost))
        return PeersLost(rank=self.rank, lost=lost, hosts=hosts, place=str(place or ""), cause=error)

    def _lost_ranks(self) -> tuple[int, ...]:
        """Return the ranks that did not sign; if the store is unreachable, the ranks on rank 0's host."""
        everybody, signed, reached = range(self.ranks), set[int](), threading.Event()

        def sign_and_read() -> None:
            deadline = time.monotonic() + SIGN_WITHIN
            self.store.set(f"{self.rank} gave up", "")
            while len(signed) < self.ranks and time.monotonic() < deadline:
                signed.update(peer for peer in everybody if self.store.check([f"{peer} gave up"]))
                reached.set()
                time.sleep(LOOK_EVERY)

        reader = threading.Thread(target=sign_and_read, daemon=True)
        reader.start()
        reader.join(2 * SIGN_WITHIN)  # if the network is down, a call to the store blocks for minutes
        if not reached.is_set():
            return tuple(peer for peer in everybody if self.hosts[peer] == self.hosts[0])
        return tuple(peer for peer in everybody if peer not in signed)
