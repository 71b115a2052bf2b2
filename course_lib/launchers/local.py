"""`launch`: one function on several ranks of this machine, from a cell or a script."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from numbers import Real
from typing import Any

from course_lib.launchers import messages, payload
from course_lib.launchers.errors import CannotSend, LaunchError, RanksStuck
from course_lib.launchers.flight import Call, first_difference
from course_lib.launchers.rank import INSIDE_A_RANK
from course_lib.launchers.run import Run
from course_lib.launchers.stacks import Where, cell_sources
from course_lib.launchers.supervisor import supervise
from course_lib.launchers.verdict import verdict

# Imported once, in the server. torch imports `_dynamo` (two seconds) when a model is first wrapped or optimised.
PRELOADED = ["torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo", "course_lib.launchers.supervisor"]
MOST_RANKS = 64
LINES_SHOWN = 1000  # a notebook with 100,000 lines of output is no longer usable
BYTES_KEPT = 64 << 20
START_WITHIN = 120.0
GRACE = 0.3  # after the first fault, how long to wait for the other ranks' side of the story
ANSWERS_WITHIN = 2.0


def launch(fn: Callable, *args: Any, ranks: int, timeout: float | None = 60.0, **kwargs: Any) -> Run:
    """Run `fn(*args, **kwargs)` on `ranks` processes of this machine and return what each returned.

    On each of them the process group is up and `course_lib.device()` is the rank's device. What they print
    appears here, tagged. `timeout` counts from the moment all ranks have started; None waits for ever.
    """
    _check(fn, ranks, timeout)
    job = messages.Job(
        call=payload.pack_call(fn, args, kwargs),
        ranks=ranks,
        environment=dict(os.environ),
        folder=os.getcwd(),
        sources=cell_sources(),
    )
    try:
        with _supervisor(job) as supervisor:
            return _Watch(supervisor, ranks, timeout).result()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("all ranks were stopped") from None


def warm_up() -> None:
    """Start the server that ranks are forked from; it imports torch while the learner reads on."""
    if start_method() == "forkserver":
        multiprocessing.set_forkserver_preload(PRELOADED)
        multiprocessing.forkserver.ensure_running()


def start_method() -> str:
    """`forkserver` on Linux. Elsewhere `spawn`: Windows has no fork, and macOS's frameworks do not survive one."""
    default = "forkserver" if sys.platform.startswith("linux") else "spawn"
    return os.environ.get("COURSE_LIB_START_METHOD", default)


def _check(fn: Any, ranks: Any, timeout: Any) -> None:
    if INSIDE_A_RANK in os.environ:
        raise LaunchError(
            f"launch() was called on rank {os.environ[INSIDE_A_RANK]}: a rank cannot launch ranks. "
            "Call it from the notebook or from the script's main block"
        )
    if not callable(fn):
        raise TypeError(f"fn={fn!r}: launch needs a function to run on every rank")
    if isinstance(ranks, bool) or not isinstance(ranks, int):
        raise TypeError(f"ranks={ranks!r}: give the number of ranks as a whole number, for example ranks=4")
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: a launch needs at least one rank")
    if ranks > MOST_RANKS:
        raise ValueError(f"ranks={ranks}: at most {MOST_RANKS} ranks on one machine; use torchrun on several")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, Real)):
        raise TypeError(f"timeout={timeout!r}: give a number of seconds, or None to wait for ever")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout}: give a number of seconds above 0, or None to wait for ever")


@contextlib.contextmanager
def _supervisor(job: messages.Job):
    """A connection to a fresh supervisor. Closing it ends the launch and everything that belongs to it."""
    method = start_method()
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    ranks_method = "fork" if method == "forkserver" else "spawn"
    process = context.Process(target=supervise, args=(job, there, ranks_method), name="supervisor")
    try:
        with _main_module_hidden():
            try:
                warm_up()
                process.start()
            except (EOFError, ConnectionError):  # the server was killed a moment ago
                time.sleep(0.2)
                warm_up()
                process.start()
        there.close()
        yield here
    finally:
        here.close()
        if process.pid is not None:
            process.join()


_starting = threading.Lock()


@contextlib.contextmanager
def _main_module_hidden():
    """Keep `multiprocessing` from running the learner's script again in the supervisor.

    It does so to find functions by name; ours travel by value. Without this, a script would need
    `if __name__ == "__main__":`, and one that is read from a pipe could not launch at all.
    """
    main = sys.modules["__main__"]
    with _starting:
        file, spec = main.__dict__.pop("__file__", None), getattr(main, "__spec__", None)
        main.__spec__ = None
        try:
            yield
        finally:
            main.__spec__ = spec
            if file is not None:
                main.__file__ = file


class _Watch:
    """Listens to one launch until it has an answer or a reason why there is none."""

    def __init__(self, supervisor: Connection, ranks: int, timeout: float | None) -> None:
        self.supervisor, self.ranks, self.timeout = supervisor, ranks, timeout
        self.started: set[int] = set()
        self.returned: dict[int, messages.Returned] = {}
        self.raised: list[messages.Raised] = []
        self.died: list[messages.Died] = []
        self.located: dict[int, Where] = {}
        self.calls: dict[int, list[Call]] = {}
        self.disagreement: dict[int, Call] | None = None
        self.output = _Output()

    def result(self) -> Run:
        """The finished run; raises what went wrong, with the output so far attached."""
        try:
            self._listen(START_WITHIN, until=lambda: len(self.started) == self.ranks or self._faulty())
            self._listen(self.timeout, until=lambda: len(self.returned) == self.ranks or self._faulty())
            if self._faulty():
                self._listen(GRACE, until=lambda: len(self.raised) + len(self.died) == self.ranks)
                self._ask_where()
                raise verdict(self.raised, self.died, self.located, self.disagreement)
            if len(self.returned) < self.ranks:
                raise self._stuck()
            self.supervisor.send(messages.DISMISS)
            return self._run()
        except LaunchError as error:
            error.output = self.output.lines
            error.spans = [span for report in (*self.returned.values(), *self.raised) for span in report.spans]
            raise error from getattr(error, "exception", None)
        finally:
            self.output.finish()

    def _faulty(self) -> bool:
        return bool(self.raised or self.died or self.disagreement)

    def _listen(self, seconds: float | None, until: Callable[[], bool]) -> None:
        """Take what the ranks report for at most `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not until():
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return
            if self.supervisor.poll(remaining):
                try:
                    self._take(self.supervisor.recv())
                except (EOFError, ConnectionError):
                    raise LaunchError("the ranks' supervisor ended before they did; run it again") from None

    def _take(self, message: Any) -> None:
        match message:
            case messages.Lines(rank, lines):
                self.output.add(rank, lines)
            case messages.Started(rank):
                self.started.add(rank)
            case messages.Returned(rank):
                self.returned[rank] = message
            case messages.Raised():
                self.raised.append(message)
            case messages.Died(rank):
                if rank not in self.returned and all(report.rank != rank for report in self.raised):
                    self.died.append(message)
            case messages.Located(rank, where):
                self.located[rank] = where
        if getattr(message, "calls", None):
            self.calls[message.rank] = message.calls
            self.disagreement = first_difference(self.calls)

    def _ask_where(self) -> None:
        """Ask every rank that lives where it is and which collectives it has called."""
        dead = {report.rank for report in self.died}
        self.located = {rank: where for rank, where in self.located.items() if rank in dead}
        self.supervisor.send(messages.LOCATE)
        self._listen(ANSWERS_WITHIN, until=lambda: len(self.located.keys() | dead) == self.ranks)

    def _stuck(self) -> LaunchError:
        if len(self.started) < self.ranks:
            missing = sorted(set(range(self.ranks)) - self.started)
            return LaunchError(f"ranks {missing} did not start within {START_WITHIN:g} s; run `course doctor`")
        self._ask_where()
        if self._faulty():
            return verdict(self.raised, self.died, self.located, self.disagreement)
        unknown = {rank: Where("running") for rank in range(self.ranks)}
        return RanksStuck(seconds=self.timeout, where={**unknown, **self.located})

    def _run(self) -> Run:
        reports = [self.returned[rank] for rank in range(self.ranks)]
        began = min(report.began for report in reports)
        return Run(
            values=tuple(_unpack(report) for report in reports),
            seconds=max(report.ended for report in reports) - began,
            output=self.output.lines,
            spans=[span.since(began) for report in reports for span in report.spans],
        )


class _Output:
    """Shows the ranks' lines as they come, up to a limit, and keeps them."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []
        self._bytes = 0
        self._dropped = 0

    def add(self, rank: int, lines: list[str]) -> None:
        room = max(0, LINES_SHOWN - len(self.lines))
        if room:
            print("\n".join(f"[rank {rank}] {line}" for line in lines[:room]), flush=True)
        for line in lines:
            self._bytes += len(line)
            if self._bytes > BYTES_KEPT:
                self._dropped += 1
            else:
                self.lines.append((rank, line))

    def finish(self) -> None:
        hidden = len(self.lines) - LINES_SHOWN
        if hidden > 0:
            print(f"[launch] {hidden:,} more lines are in run.output (error.output if the launch failed)")
        if self._dropped:
            print(f"[launch] {self._dropped:,} lines were dropped: output is kept up to {BYTES_KEPT >> 20} MB")


def _unpack(report: messages.Returned) -> Any:
    try:
        return payload.unpack(report.value)
    except Exception as error:
        raise CannotSend(f"what rank {report.rank} returned cannot be read here: {error}") from error
