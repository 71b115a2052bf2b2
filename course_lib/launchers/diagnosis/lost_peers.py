"""Find out which ranks are gone when they no longer answer.

gloo says "Timed out waiting 5000ms for recv operation to complete", but not which rank it waited for. Ranks on several
machines share a store, hosted on rank 0's machine. Each rank that gives up signs a roster there; the ranks that don't
sign are lost. A rank that cannot even reach the store has lost the machine that hosts it.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_lib.launchers.diagnosis.errors import PeersLost
from course_lib.launchers.diagnosis.stacks import stack_of_exception, where

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

# Errors from gloo, NCCL and gRPC that a rank sees when a peer is gone. They are never the root cause.
CONSEQUENCE = re.compile(
    r"Connection (closed|reset|refused)|connection was lost|Timed out waiting|Broken pipe|"
    r"Read error|Application timeout caused pair closure|monitoredBarrier|NCCL .*remote error|"
    r"Socket closed|failed to connect to all addresses|heartbeat",
    re.IGNORECASE,
)

SIGN_WITHIN = 3.0  # seconds; ranks that wait in the same collective give up at about the same time
LOOK_EVERY = 0.2


class PeerRoster:
    """All ranks of a job and their hosts. Every rank creates one right after the rendezvous."""

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self.store, self.rank, self.ranks = store, rank, ranks
        store.set(f"host of {rank}", socket.gethostname())
        self.hosts = [store.get(f"host of {each}").decode() for each in range(ranks)]

    def explain(self, error: BaseException) -> PeersLost | None:
        """Return a `PeersLost` that names the lost ranks, or None if lost ranks are not why `error` was raised."""
        if not CONSEQUENCE.search(str(error)):
            return None
        lost = self._lost()
        if not lost:
            return None  # every rank gave up, so they were waiting for each other
        place = where(stack_of_exception(error.__traceback__)).frame
        return PeersLost(rank=self.rank, lost=lost, hosts=self._hosts_of(lost), place=str(place or ""), cause=error)

    def _lost(self) -> tuple[int, ...]:
        """Return the ranks that did not sign; if the store is unreachable, the ranks on rank 0's host."""
        signed: set[int] = set()
        reached = threading.Event()
        reader = threading.Thread(target=self._sign_and_read, args=(signed, reached), daemon=True)
        reader.start()
        reader.join(2 * SIGN_WITHIN)  # if the network is down, a call to the store blocks for minutes
        if not reached.is_set():
            return tuple(each for each in range(self.ranks) if self.hosts[each] == self.hosts[0])
        return tuple(each for each in range(self.ranks) if each not in signed)

    def _sign_and_read(self, signed: set[int], reached: threading.Event) -> None:
        deadline = time.monotonic() + SIGN_WITHIN
        self.store.set(f"{self.rank} gave up", "")
        while len(signed) < self.ranks and time.monotonic() < deadline:
            signed |= {each for each in range(self.ranks) if self.store.check([f"{each} gave up"])}
            reached.set()
            time.sleep(LOOK_EVERY)

    def _hosts_of(self, ranks: Sequence[int]) -> str:
        return " and ".join(dict.fromkeys(self.hosts[rank] for rank in ranks))
