"""Who is gone: what a rank can find out about the others when they no longer answer.

gloo says "Timed out waiting 5000ms for recv operation to complete", and not for whom. Ranks on several machines share
a store, which rank 0's machine keeps: there, each that gives up signs a roster, and the names that are missing are
those of the lost. A rank that cannot even reach the store has lost the machine that keeps it.
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

# What a rank sees when another one has gone, in the words of gloo, NCCL and gRPC: never the cause.
CONSEQUENCE = re.compile(
    r"Connection (closed|reset|refused)|connection was lost|Timed out waiting|Broken pipe|"
    r"Read error|Application timeout caused pair closure|monitoredBarrier|NCCL .*remote error|"
    r"Socket closed|failed to connect to all addresses|heartbeat",
    re.IGNORECASE,
)

SIGN_WITHIN = 3.0  # ranks that wait in one collective give up at about the same time
LOOK_EVERY = 0.2


class PeerRoster:
    """All ranks of a job with their hosts; made by every rank when they have just met."""

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self.store, self.rank, self.ranks = store, rank, ranks
        store.set(f"host of {rank}", socket.gethostname())
        self.hosts = [store.get(f"host of {each}").decode() for each in range(ranks)]

    def explain(self, error: BaseException) -> PeersLost | None:
        """Which ranks are gone, if that is why `error` was raised."""
        if not CONSEQUENCE.search(str(error)):
            return None
        lost = self._lost()
        if not lost:
            return None  # all gave up: they wait for each other
        place = where(stack_of_exception(error.__traceback__)).frame
        return PeersLost(rank=self.rank, lost=lost, hosts=self._hosts_of(lost), place=str(place or ""), cause=error)

    def _lost(self) -> tuple[int, ...]:
        """The ranks that do not sign. Those of rank 0's host, if the roster is out of reach."""
        signed: set[int] = set()
        reached = threading.Event()
        reader = threading.Thread(target=self._sign_and_read, args=(signed, reached), daemon=True)
        reader.start()
        reader.join(2 * SIGN_WITHIN)  # a store behind a cut cable keeps its caller waiting for minutes
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
