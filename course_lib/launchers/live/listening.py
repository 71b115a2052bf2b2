"""The notebook's side of one task of live ranks: it listens as `launch` does, but keeps ranks alive if it can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from course_lib.launchers.diagnosis.errors import Interrupted, LaunchError, name_ranks
from course_lib.launchers.diagnosis.record import Record
from course_lib.launchers.diagnosis.stacks import Where
from course_lib.launchers.process import messages, pickling
from course_lib.launchers.process.listener import SUPERVISOR_IS_GONE, Listener, run_of
from course_lib.launchers.process.patience import WallTime
from course_lib.launchers.run import Run

LEAVE_WITHIN = 5.0  # seconds that a rank may take to leave a task; Python code takes milliseconds
SETTLE_WITHIN = 0.2  # seconds for a collective that all ranks have joined to end
ASK_AGAIN = 0.5  # seconds between two interrupts: code may catch the first one
LARGE = 1 << 15  # bytes
REPORTS = (messages.Returned, messages.Raised, messages.Located)


class TaskListener(Listener):
    """Listens to one task. Ranks that are not `wanted` have nothing to do in it, and return immediately."""

    stopped = "the cell was stopped on all ranks"

    def __init__(
        self,
        supervisor: messages.Channel,
        ranks: int,
        timeout: float | None,
        number: int,
        wanted: Collection[int],
        dead: set[int],
    ) -> None:
        super().__init__(supervisor, ranks, timeout)
        self.number, self.wanted = number, wanted
        self.started = set(range(ranks))
        self.idle = set(range(ranks)) - set(wanted)
        nothing = pickling.pack_value((None, []))
        self.returned = {rank: messages.Returned(rank, nothing, [], Record(), 0.0, 0.0) for rank in dead}
        self.dead = dead  # shared with the team: a rank that dies in this task is missing from all later ones
        self.aborted = False
        self.unresponsive: set[int] = set()  # ranks for which the supervisor had to answer
        self._send_thread: threading.Thread | None = None

    def send(self, order: Any) -> None:
        """Send an order, in a thread if it is large: the supervisor may be waiting for us to read what ranks print."""
        previous = self._send_thread
        if previous is not None and previous.is_alive():
            order = previous, order
        elif not isinstance(order, messages.Task) or len(order.call) < LARGE:
            return super()._send(order)
        self._send_thread = threading.Thread(target=self._send_after, args=(order,), daemon=True)
        self._send_thread.start()

    def _send_after(self, order: Any) -> None:
        if isinstance(order, tuple):
            previous, order = order
            previous.join()
        super()._send(order)

    _send = send

    def _handle(self, message: Any) -> None:
        if isinstance(message, REPORTS) and message.task not in (None, self.number):
            return  # about an earlier task
        if isinstance(message, messages.Located):
            (self.unresponsive.discard if message.record else self.unresponsive.add)(message.rank)
        elif isinstance(message, messages.Died):
            self.dead.add(message.rank)
        super()._handle(message)

    def _dismiss(self) -> None:
        """Do nothing: live ranks stay."""

    def _run(self) -> Run:
        reports = [self.returned[rank] for rank in range(self.ranks)]
        participants = [self.returned[rank] for rank in self.wanted]
        seconds = max(report.ended for report in participants) - min(report.began for report in participants)
        return run_of([pickling.unpack(report.value) for report in reports], participants, seconds, self.output.lines)

    def _states(self) -> dict[int, Where]:
        return super()._states() | dict.fromkeys(self.idle, Where("idle"))

    def _verdict(self) -> LaunchError:
        error = super()._verdict()
        error.args = (str(error).replace("before its function returned", "before the cell ended"),)
        return error

    def _interrupted(self) -> Interrupted:
        error = super()._interrupted()
        return Interrupted(error.when, error.where, then=self.stopped)

    def wait_for_start(self) -> None:
        """Wait until all ranks have joined the process group; raise if one cannot."""
        self.started.clear()
        self._listen(WallTime(self.start_within), until=lambda: len(self.started) == self.ranks or self._faulty())
        if self._faulty():
            raise self._verdict()
        if len(self.started) < self.ranks:
            raise self._stuck()

    def handle_pending(self) -> None:
        """Process the messages that have arrived since the last task, such as a rank's death."""
        try:
            while self.supervisor.poll(0):
                self._handle(self.supervisor.recv())
        except (EOFError, ConnectionError):
            self.trouble = self.trouble or SUPERVISOR_IS_GONE

    def end_task(self) -> None:
        """Make every rank leave the task. Ranks that cannot are killed, and are in `died` afterwards.

        Ranks that compute are interrupted as if by Ctrl-C. If a rank waits for others, the process group is aborted.
        """
        if self.busy() and not self.deadlock:
            self._wait_for_started_calls()
        waits = any(self.located.get(rank, Where("waiting")).doing == "waiting" for rank in self.busy())
        while self.busy() and not self.trouble:
            self._interrupt(waits)
            if stubborn := self.busy():
                waits = True
                self.end(stubborn & self.unresponsive or stubborn)  # the others may be waiting for the silent ones

    def _wait_for_started_calls(self) -> None:
        """Interrupt the ranks, and wait until those that cannot leave have reached the call in which they wait.

        A rank that sends while others abort the process group may be lost: if the send fails immediately, gloo forgets
        it, but waits for it forever. This happens to a rank that a signal had stopped and that wakes up.
        """
        self._send(messages.Interrupt(abort=False))
        self._ask_where()  # a rank that answers has been interrupted, and starts no further call
        self._listen(WallTime(SETTLE_WITHIN), until=lambda: not self.busy())

    def _interrupt(self, abort: bool) -> None:
        """Interrupt the ranks again and again until all of them have left the task, or time is up."""
        until = time.monotonic() + LEAVE_WITHIN
        while self.busy() and time.monotonic() < until:
            self.aborted = self.aborted or abort
            self._send(messages.Interrupt(abort))
            self._listen(WallTime(ASK_AGAIN), until=lambda: not self.busy())
            abort = True

    def end(self, ranks: Collection[int]) -> None:
        """Kill these ranks, and wait until they have ended."""
        self._send(messages.Kill(tuple(ranks)))
        if self._listen(WallTime(self.start_within), until=lambda: {report.rank for report in self.died} >= set(ranks)):
            self.trouble = self.trouble or f"{name_ranks(sorted(ranks))} cannot be ended"

    def out_of_step(self) -> bool:
        """Return whether the ranks' next collectives or messages would not match, because their numbers differ."""
        records = {report.rank: report.record for report in (*self.returned.values(), *self.raised)}
        return self.aborted or out_of_step(records)


def out_of_step(records: dict[int, Record]) -> bool:
    """Return whether, in any group, only some of the ranks have started a collective or a message."""
    groups = {group for record in records.values() for group in record.begun}
    for group in groups:
        counts = {record.begun[group] for record in records.values() if group in record.begun}
        is_world = group.split("/")[1].partition(" ")[0] in ("", "0", "default_pg")
        if len(counts) > 1 or (is_world and any(group not in record.begun for record in records.values())):
            return True
    sent = {(rank, line): count for rank, record in records.items() for line, count in record.sent.items()}
    counterpart = {"send": "recv", "recv": "send"}
    return any(
        sent.get((peer, (counterpart[kind], group, rank, tag)), 0) != count
        for (rank, (kind, group, peer, tag)), count in sent.items()
        if peer in records
    )


def listen(listener: TaskListener, recover: Callable[[TaskListener], str], finish: Callable[[Run], Run]) -> Run:
    """Return `finish` of the finished task. If it fails, what `recover` returns is added to the error's message."""
    try:
        return finish(listener.result())
    except (LaunchError, Interrupted) as error:
        if advice := recover(listener):
            error.args = (f"{error}\n\n{advice}",)
        raise
