"""The notebook's side of a launch: listen until the ranks have returned, or until it is clear why they won't."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from course_lib.launcher.hangs import errors
from course_lib.launcher.hangs.deadlock import Deadlock, Difference, awaited_ranks, find_deadlock, first_difference
from course_lib.launcher.hangs.errors import CannotSend, Interrupted, LaunchError, RanksStuck
from course_lib.launcher.hangs.record import RankRecord
from course_lib.launcher.hangs.stacks import Where
from course_lib.launcher.notebook.blame import verdict
from course_lib.launcher.notebook.progress_bar import LiveLine, ProgressBar
from course_lib.launcher.notebook.run import Run, run_of
from course_lib.launcher.wire import messages, pickling
from course_lib.launcher.wire.progress import parse_report
from course_lib.runtime import stop
from course_lib.runtime.patience import Deadline, WallTime

MAX_LINES_SHOWN = 1000  # a notebook with 100,000 lines of output is no longer usable
MAX_OUTPUT_BYTES = 64 << 20
# What gloo's C++ prints before it aborts a rank whose message sizes don't match. Our own error explains it better.
GLOO_ABORTS = re.compile("terminate called after .* of 'gloo::|.*Received data size doesn't match expected size")
# What libraries print at every log level: gloo when it connects, TensorFlow before its log is set up.
NOISE = re.compile(r"\[Gloo\] Rank \d+ is connected|WARNING: All log messages before absl::|[IWE]0000 00:00:\d+\.\d+ ")
START_WITHIN = 300.0  # on a busy machine, 64 ranks take a while
GRACE = 0.3  # how long to wait for the other ranks' reports after the first fault
REPLY_WITHIN = 2.0  # longer than the supervisor's ANSWER_WITHIN, after which it replies for a rank
QUIET = 5.0  # seconds without output after which we show where the ranks are
LOOK_EVERY = 1.0
REPORTS = (messages.Returned, messages.Raised, messages.Located)
SUPERVISOR_IS_GONE = (
    "the process that supervises the ranks was killed before they ended. If you didn't kill it, this machine probably "
    "ran out of memory: launch fewer ranks, or run `course doctor`"
)


class Listener:
    """Listens to one launch, or to one task of live ranks (see `live`), until it has returned or failed.

    `task` is 0 for a launch, otherwise the number of the task; its ranks already run, and `idle` ones don't take part.
    """

    def __init__(
        self,
        supervisor: messages.SupervisorChannel,
        ranks: int,
        timeout: float | None,
        *,
        clock: Callable[[], Deadline] | None = None,
        start_within: float = START_WITHIN,
        grace: float = GRACE,
        task: int = 0,
        idle: Collection[int] = (),
    ) -> None:
        self.supervisor, self.ranks, self.timeout = supervisor, ranks, timeout
        self.clock = clock or (lambda: WallTime(timeout))  # called when all ranks have started
        self.start_within, self.grace = start_within, grace
        self.task, self.idle = task, set(idle)
        self.started: set[int] = set(range(ranks)) if task else set()
        self.returned: dict[int, messages.Returned] = {}
        self.raised: list[messages.Raised] = []
        self.died: list[messages.Died] = []  # before they returned or raised
        self.ended: set[int] = set()  # all ranks whose process has ended
        self.located: dict[int, Where] = {}
        self.records: dict[int, RankRecord] = {}
        self.disagreement: Difference | None = None
        self.deadlock: Deadlock | None = None
        self.trouble: str = ""  # what went wrong in the supervisor
        self.started_at = time.monotonic()
        self.next_look = math.inf  # when to ask the ranks where they are, if none of them prints anything
        self.unanswered: set[int] = set()  # ranks that were asked and have not answered
        self.live_line = LiveLine()
        self.output = Output(self.live_line)

    def result(self) -> Run:
        """Return the finished run, or raise what went wrong, with the output so far attached."""
        try:
            with stop.request.passed_on(lambda reason: self.send(messages.Stop(reason))):
                self.wait_for_start()
                self._wait_for_returns()
            if not self.task:
                self.send(messages.DISMISS)
            return self._run()
        except KeyboardInterrupt:
            after = f"after {time.monotonic() - self.started_at:.1f} s"
            if len(self.started) < self.ranks:
                raise Interrupted(f"{after}, while the ranks were starting") from None
            with contextlib.suppress(LaunchError, KeyboardInterrupt):
                self.ask_where()  # which is what the user wants to know
            then = "the cell was stopped on all ranks" if self.task else "all ranks were stopped"
            raise Interrupted(after, self._states(), then=then) from None
        except LaunchError as error:
            error.output = self.output.lines
            error.spans = [span for report in (*self.returned.values(), *self.raised) for span in report.spans]
            error.counts = {rank: sum(record.begun.values()) for rank, record in sorted(self.records.items())}
            raise error from getattr(error, "exception", None)
        finally:
            self.output.finish()

    def wait_for_start(self) -> None:
        """Wait until all ranks have joined the process group. Raises if one cannot."""
        deadline = WallTime(self.start_within)
        self.listen(deadline, until=lambda: len(self.started) == self.ranks or self._failed())
        if self._failed():
            self._raise_fault()
        if missing := sorted(set(range(self.ranks)) - self.started):
            raise LaunchError(f"ranks {missing} did not start within {self.start_within:g} s; run `course doctor`")

    def _wait_for_returns(self) -> None:
        """Listen until all ranks have returned. Raises if something is wrong, or time is up.

        We report a deadlock only if it still holds after asking every rank again: an old report may be out of date,
        and in a run with thousands of collectives, the first ones drop out of a rank's record.
        """
        deadline = self.clock()
        while True:
            self.next_look = time.monotonic() + QUIET
            spent = self.listen(deadline, until=lambda: len(self.returned) == self.ranks or self._decided())
            if self.deadlock is None:
                break
            self.deadlock = None
            self.records = {rank: report.record for rank, report in self.returned.items()}
            self.ask_where()
            self.deadlock = find_deadlock(self.records, set(self.returned))
            if self._decided():
                break
        if self._decided():
            self._raise_fault()
        if len(self.returned) < self.ranks:
            self.ask_where()
            if self._decided():  # the answers show a deadlock, or calls that differ
                raise self._verdict()
            states = self._states()
            raise RanksStuck(where=states, spent=spent, odd=awaited_ranks(self.records, states))

    def _raise_fault(self) -> NoReturn:
        """Raise what is wrong, after the other ranks had time to report what they know."""
        self.listen(WallTime(self.grace), until=lambda: not self.busy())
        self.ask_where()
        raise self._verdict()

    def busy(self) -> set[int]:
        """Return the ranks that have not returned, raised or died."""
        failed = {report.rank for report in (*self.raised, *self.died)}
        return set(range(self.ranks)) - failed - self.returned.keys()

    def _failed(self) -> bool:
        return bool(self.raised or self.died or self.trouble)

    def _decided(self) -> bool:
        return self._failed() or bool(self.disagreement or self.deadlock)

    def _verdict(self) -> LaunchError:
        """Return why this launch failed. What the ranks report takes precedence over what the supervisor reports."""
        if self.raised or self.died or self.disagreement:
            before = "the cell ended" if self.task else "its function returned"
            return verdict(self.raised, self.died, self.located, self.disagreement, before)
        if self.deadlock:
            states = self._states()
            because = errors.all_alike(states) or self.deadlock.describe(self.idle)
            odd = self.deadlock.culprits(self.ranks) or errors.odd_ones_out(states) or self.deadlock.most_awaited()
            return RanksStuck(where=states, because=because, odd=sorted(odd))
        return LaunchError(self.trouble)

    def listen(self, deadline: Deadline, until: Callable[[], bool]) -> str:
        """Process the ranks' reports. Returns the limit that was used up, if any; reports already sent still count."""
        while not until():
            limit = deadline.over()
            due, look_in = deadline.look_again_in(), max(0.0, self.next_look - time.monotonic())
            wait = min(look_in, math.inf if due is None else due)
            try:
                if self.supervisor.poll(0 if limit else None if wait == math.inf else wait):
                    self._handle(self.supervisor.recv())
                elif limit:
                    return limit
                elif time.monotonic() >= self.next_look:  # ask for the live line
                    if self.unanswered:  # some have not answered because they are busy
                        self._show_where()
                    self.unanswered = set(range(self.ranks)) - self.returned.keys()
                    self.next_look = time.monotonic() + LOOK_EVERY
                    self.send(messages.LOOK)
            except (EOFError, ConnectionError):
                self.trouble = self.trouble or SUPERVISOR_IS_GONE
                raise self._verdict() from None
        return ""

    def _show_where(self) -> None:
        limit = "" if self.timeout is None else f" of {self.timeout:g} (timeout=)"
        self.live_line.show(f"{time.monotonic() - self.started_at:.0f} s{limit}; {errors.in_one_line(self._states())}")

    def _handle(self, message: Any) -> None:
        if isinstance(message, REPORTS) and message.task not in (None, self.task):
            return  # about an earlier task
        if isinstance(message, (messages.Lines, messages.Unfinished)) and self.next_look < math.inf:
            self.next_look = time.monotonic() + QUIET
            self.unanswered.clear()
        match message:
            case messages.Lines(rank, lines):
                self.output.add(rank, lines)
            case messages.Unfinished(rank, text):
                self.live_line.show(f"[rank {rank}] {text}")
            case messages.Started(rank):
                self.started.add(rank)
            case messages.Returned(rank):
                self.returned[rank] = message
            case messages.Raised():
                self.raised.append(message)
            case messages.Died(rank):
                self.ended.add(rank)
                if rank not in self.returned and all(report.rank != rank for report in self.raised):
                    self.died.append(message)
            case messages.Located(rank, state):
                self.located[rank] = state
                if rank in self.unanswered:
                    self.unanswered.discard(rank)
                    if not self.unanswered:
                        self._show_where()
            case messages.SupervisorFailed(text):
                self.trouble = text
        if isinstance(message, REPORTS) and message.record:
            self.records[message.rank] = message.record
            self.disagreement = first_difference(self.records) or self.disagreement  # old calls drop out of records
            self.deadlock = find_deadlock(self.records, set(self.returned)) or self.deadlock

    def ask_where(self) -> None:
        """Ask every rank that has not died where it is and which collectives it has called."""
        dead = {report.rank for report in self.died}
        self.next_look = math.inf
        self.listen(WallTime(REPLY_WITHIN), until=lambda: not self.unanswered - dead)  # answers to earlier questions
        self.unanswered = set()
        self.located = {rank: state for rank, state in self.located.items() if rank in dead}
        self.send(messages.LOCATE)
        self.listen(WallTime(REPLY_WITHIN), until=lambda: len(self.located.keys() | dead) == self.ranks)

    def send(self, order: Any) -> None:
        """Send an order to the ranks or their supervisor."""
        with contextlib.suppress(OSError):  # if the supervisor is gone, we find out when we listen
            self.supervisor.send(order)

    def _states(self) -> dict[int, Where]:
        """Return where each rank is. A rank that does not answer counts as running."""
        states = {rank: self.located.get(rank, Where("running")) for rank in range(self.ranks)}
        states |= dict.fromkeys(self.returned, Where("returned"))
        return states | dict.fromkeys(self.idle, Where("idle"))

    def _run(self) -> Run:
        """Return the run. Ranks that are idle have a value, but no part in its times."""
        values = []
        for rank in range(self.ranks):
            try:
                values.append(pickling.unpack(self.returned[rank].value))
            except Exception as error:
                raise CannotSend(f"what rank {rank} returned cannot be read here: {error}") from error
        reports = [self.returned[rank] for rank in range(self.ranks) if rank not in self.idle]
        seconds = max(report.ended for report in reports) - min(report.began for report in reports)
        return run_of(values, reports, seconds, self.output.lines)


class Output:
    """Shows the ranks' lines as they arrive, up to a limit, and stores them. Progress records become a progress bar."""

    def __init__(self, live_line: LiveLine) -> None:
        self.live_line = live_line
        self.lines: list[tuple[int, str]] = []
        self._bytes = 0
        self._dropped = 0
        self._bar = ProgressBar()

    def add(self, rank: int, lines: list[str]) -> None:
        """Add lines printed by a rank, in order."""
        self.live_line.clear()
        for progress in filter(None, map(parse_report, lines)):
            self._bar.show(progress)
        lines = [line for line in lines if not (parse_report(line) or NOISE.match(line))]
        shown = [line for line in lines if not GLOO_ABORTS.match(line)]
        if shown := shown[: max(0, MAX_LINES_SHOWN - len(self.lines))]:
            self._bar.clear()
            print("\n".join(f"[rank {rank}] {line}" for line in shown), flush=True)
        for line in lines:
            self._bytes += len(line)
            if self._bytes > MAX_OUTPUT_BYTES:
                self._dropped += 1
            else:
                self.lines.append((rank, line))

    def finish(self) -> None:
        self.live_line.clear()
        self._bar.close()
        hidden = len(self.lines) - MAX_LINES_SHOWN
        if hidden > 0:
            print(f"[launch] {hidden:,} more lines are in run.output (error.output if the launch failed)")
        if self._dropped:
            print(f"[launch] {self._dropped:,} lines were dropped: the limit is {MAX_OUTPUT_BYTES >> 20} MB of output")
