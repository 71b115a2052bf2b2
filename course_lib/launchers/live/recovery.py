"""How live ranks leave a task that failed, so that they can run the next one in the same processes."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from course_lib.launchers.diagnosis.record import RankRecord
from course_lib.launchers.diagnosis.stacks import Where
from course_lib.launchers.process import messages
from course_lib.launchers.process.listener import Listener
from course_lib.launchers.process.patience import WallTime

LEAVE_WITHIN = 5.0  # seconds that a rank may take to leave a task; Python code takes milliseconds
SETTLE_WITHIN = 0.2  # seconds for a collective that all ranks have joined to end
ASK_AGAIN = 0.5  # seconds between two interrupts: code may catch the first one


class OrderQueue:
    """A channel that sends from a thread: a supervisor that waits for us to read what ranks print reads no order."""

    def __init__(self, channel: messages.SupervisorChannel) -> None:
        self.channel = channel
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send_all, daemon=True, name="course_lib sends")
        self._thread.start()

    def send(self, order: Any) -> None:
        """Put an order behind the ones that have not been sent yet."""
        self._orders.put(order)

    def recv(self) -> Any:
        """Return the next message."""
        return self.channel.recv()

    def poll(self, seconds: float | None) -> bool:
        """Return whether there is a message, after waiting for one up to `seconds`."""
        return self.channel.poll(seconds)

    def close(self, last: Any) -> None:
        """Send a last order, and wait until it has been sent."""
        self._orders.put(last)
        self._orders.put(None)
        if self._thread is not threading.current_thread():  # garbage collection may run this in any thread
            self._thread.join(LEAVE_WITHIN)

    def _send_all(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self.channel.send(order)
            except OSError:
                return  # the supervisor is gone: whoever listens finds out


def leave_task(listener: Listener) -> bool:
    """Make every rank leave its task, and return whether the ranks can go on with the same process group.

    Ranks that compute are interrupted as if by Ctrl-C. If a rank waits for others, the process group is aborted. Those
    that cannot leave are still `busy()` afterwards.
    """
    if listener.busy() and not listener.deadlock:
        # A rank that sends while others abort the process group may be lost: if the send fails immediately, gloo
        # forgets it, but waits for it forever. So first, those that cannot leave must reach the call they wait in.
        listener.send(messages.Interrupt(abort=False))
        listener.ask_where()  # a rank that answers has been interrupted, and starts no further call
        listener.listen(WallTime(SETTLE_WITHIN), until=lambda: not listener.busy())
    abort = any(listener.located.get(rank, Where("waiting")).doing == "waiting" for rank in listener.busy())
    aborted = False
    until = time.monotonic() + LEAVE_WITHIN
    while listener.busy() and time.monotonic() < until:
        listener.send(messages.Interrupt(abort))
        listener.listen(WallTime(ASK_AGAIN), until=lambda: not listener.busy())
        aborted = aborted or abort
        abort = True
    return not aborted and in_step({r.rank: r.record for r in (*listener.returned.values(), *listener.raised)})


def in_step(records: dict[int, RankRecord]) -> bool:
    """Return whether the ranks' next collectives and messages will match: all of them have started as many."""
    for group in {group for record in records.values() for group in record.begun}:
        counts = {record.begun[group] for record in records.values() if group in record.begun}
        is_world = group.split("/")[1].partition(" ")[0] in ("", "0", "default_pg")
        if len(counts) > 1 or (is_world and any(group not in record.begun for record in records.values())):
            return False
    sent = {(rank, line): count for rank, record in records.items() for line, count in record.sent.items()}
    counterpart = {"send": "recv", "recv": "send"}
    return all(
        sent.get((peer, (counterpart[kind], group, rank, tag)), 0) == count
        for (rank, (kind, group, peer, tag)), count in sent.items()
        if peer in records
    )
