"""What runs inside a rank's process: create the process group, run the learner's function, report."""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from course_lib.launcher.hangs.call_log import CallLog
from course_lib.launcher.hangs.errors import CannotSend, PeersLost, name_ranks
from course_lib.launcher.hangs.record import RankRecord, Wait
from course_lib.launcher.hangs.stacks import Where, locate, stack_of_exception, stack_of_thread
from course_lib.launcher.rank import lifetime
from course_lib.launcher.rank.joining import A_DAY, PeerRoster, accept_second_init, join_process_group, rank_environment
from course_lib.launcher.tracing import recording
from course_lib.launcher.wire import messages, pickling
from course_lib.runtime import machine, private_doors, stop, trace

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase as Connection  # pipes have a different class on Windows

WAIT_IS_LONG = 0.3  # seconds between two looks at the main thread; if it waits at both, the rank reports it


def main(
    rank: int, spec: messages.LaunchSpec, folder: str, control: Connection, stdout: Connection, stderr: Connection
) -> None:
    """Run a rank's process from start to end. `folder` is the launch's folder, which holds its store."""
    lifetime.become_a_program(folder, rank, stdout, stderr)
    sys.argv = list(spec.argv)
    trace.recorder.start(rank)
    process = RankProcess(rank, control)
    process.report_before_abort()
    roster: PeerRoster | None = None
    store_path, peer_timeout = store_file(folder, generation=0), A_DAY
    if spec.rendezvous:
        process.ahead = recording.wall_minus_monotonic()  # monotonic clocks began when their machines booted
        store_path, peer_timeout = None, spec.rendezvous.peer_timeout
    try:
        os.environ.update(rank_environment(rank, spec))
        linecache.cache.update(spec.sources)
        lifetime.seed_generators(None if spec.seed is None else spec.seed + rank)
        store = join_process_group(rank, spec.ranks, store_file=store_path, peer_timeout=peer_timeout)
        if spec.rendezvous:
            roster = PeerRoster(store, rank, spec.ranks)
            process.ahead += recording.clock_skew(store)
        process.log.install()
        process.destroyed_groups = accept_second_init(
            store, timeout=peer_timeout, on_new_group=process.log.new_generation, every_time=spec.live
        )
        pickling.send_cells_to_workers()
        if spec.live:
            serve, _, _ = pickling.unpack(spec.call)
            process.log.start_over(generation=0)
            serve(process, folder)
        else:
            process.run(spec.call, profile=spec.profile)
    except BaseException as error:
        process.report((roster and roster.explain(error)) or error)
        lifetime.run_exit_functions()
    process.dismissed.wait()


def store_file(folder: str, generation: int) -> str:
    """Return the file that ranks on one machine use to create their process group number `generation`."""
    return os.path.join(folder, f"store.{generation}")


class RankProcess:
    """One rank's connection to its supervisor: it sends reports, and a thread answers while the rank computes."""

    def __init__(self, rank: int, control: Connection) -> None:
        self.rank, self._control, self._process = rank, control, os.getpid()
        self._send_lock = threading.RLock()
        self.log = CallLog()
        self.destroyed_groups: list[Any] = []  # still alive
        self.obey: Callable[[Any], None] = lambda order: None  # called from a thread with orders for live ranks
        self.task = 0  # the one that a live rank is working on
        self.returned = False
        self.ahead = 0.0  # how far the clock that all ranks share is ahead of ours
        self.dismissed = threading.Event()
        self._answering = threading.Thread(target=self._answer, daemon=True, name="course_lib answers")
        self._answering.start()

    def report_before_abort(self) -> None:
        """From now on, report which collectives were called before `abort()` ends this process.

        gloo aborts a rank that receives a message of the wrong size, and it does so from a C++ thread. Python's signal
        handlers would never run, and we would not learn which rank called with the wrong shape.
        """
        if not hasattr(os, "setsid"):
            return

        @ctypes.CFUNCTYPE(None, ctypes.c_int)
        def report(_: int) -> None:
            self._send(messages.Located(self.rank, *self._locate(), self.task))

        self._on_abort = report  # C keeps no reference
        libc = ctypes.CDLL(None)
        libc.signal.restype = ctypes.c_void_p
        libc.signal(signal.SIGABRT, report)

    def run(self, call: bytes, *, profile: bool = False) -> None:
        """Run the pickled call and report its value and times."""
        fn, args, kwargs = pickling.unpack(call)
        pickling.fill_main_module(fn)
        self.announce()
        with recording.profiled() if profile else contextlib.nullcontext():
            started_at = time.monotonic()
            trace.recorder.look_at_core()
            value = lifetime.value_of(fn, *args, **kwargs)
            machine.wait_for_gpu()
            trace.recorder.look_at_core()
            ended_at = time.monotonic()
        self.returned = True
        self._leave_if_forked()
        lifetime.end_program()
        self.finish(pickling.pack_value(value), started_at, ended_at)

    def _leave_if_forked(self, error: BaseException | None = None) -> None:
        """End this process if the learner's function forked it, and then returned or raised: it is not the rank."""
        if os.getpid() != self._process:
            if error is not None:
                traceback.print_exception(error)
            lifetime.flush()
            os._exit(error is not None)

    def start(self, task: int) -> None:
        """Begin a task of a live rank: spans and calls before it don't belong to it."""
        self.task, self.returned = task, False
        trace.recorder.start(self.rank)
        self.log.start_task()

    def finish(self, packed: bytes, started_at: float, ended_at: float) -> None:
        """Report a pickled value, and everything that was recorded since the start."""
        self.returned = True
        self._leave_if_forked()
        record = self._record()
        report = messages.Returned(
            self.rank,
            packed,
            trace.recorder.spans,
            record,
            started_at,
            ended_at,
            collectives=recording.take_collectives(self.rank, record.calls),
            profile=recording.take_profile(),
            stopped=stop.request.obeyed,
            core_waits=trace.recorder.core_waits,
            task=self.task,
        )
        self._send(report.later(self.ahead) if self.ahead else report)

    def announce(self) -> None:
        """Report that the process group is up and that this rank's work begins."""
        self._send(messages.Started(self.rank))

    def report(self, error: BaseException) -> None:
        """Report an exception to the supervisor, with the learner's lines of the stack."""
        at = time.monotonic() + self.ahead
        self._leave_if_forked(error)
        lifetime.flush()
        stack = [] if isinstance(error, (CannotSend, PeersLost)) else stack_of_exception(error.__traceback__)
        text, pickled = "(its message could not be read)", None
        with contextlib.suppress(Exception):
            text = str(error)
        with contextlib.suppress(Exception):
            packed = pickling.pack_value(error.with_traceback(None))
            pickling.unpack(packed)  # because some exceptions can be pickled, but not read again
            pickled = packed
        trace.recorder.read(wait=False)  # the GPU may never reach the end of the last spans
        spans, record = [span.since(-self.ahead) for span in trace.recorder.spans], self._record()
        self.returned, name = True, type(error).__qualname__
        self._send(messages.Raised(self.rank, at, name, text, stack, pickled, spans, record, self.task))

    def _answer(self) -> None:
        """Answer the supervisor, and report a long wait unasked. If the supervisor is gone, end this process."""
        before, looks = None, 0
        while not self.dismissed.is_set():
            try:
                message = self._control.recv() if self._control.poll(WAIT_IS_LONG) else None
                if message is None:  # report a wait once, if the main thread has not moved since the last look
                    place = None if self.returned else self._position()
                    before, looks = place, looks + 1 if place == before else 0
                    if place and looks == 1:
                        state, record = self._locate()
                        if state.doing == "waiting":
                            self._send(messages.Located(self.rank, state, record, self.task))
                    continue
            except (EOFError, OSError):
                os._exit(1)
            if message == messages.LOCATE:
                self._send(messages.Located(self.rank, *self._locate(), self.task))
            elif isinstance(message, messages.Stop):
                stop.request.ask(message.reason)
            else:
                if message == messages.DISMISS:
                    self.dismissed.set()
                self.obey(message)

    def _locate(self) -> tuple[Where, RankRecord]:
        """Return where the rank is and its record. If it moved in between, the record has no wait."""
        if self.returned:
            return Where("returned"), self._record()
        main_thread = threading.main_thread().ident
        before, stack = self._position(), stack_of_thread(main_thread)
        record = RankRecord(alone=False)
        with contextlib.suppress(Exception):  # another thread may be writing to it; no record is better than no answer
            record = self._record(wait_of=main_thread)
        wait = record.wait
        pending = wait or next((call for call in reversed(record.calls) if not call.finished), None)
        state = locate(stack, pending and pending.op)
        if state.doing == "running":
            wait, has_started = self.log.gpu_wait()  # its GPU may have NCCL work left
            if wait is not None:
                state = replace(state, doing="waiting" if has_started else "computing", collective=wait.op)
        elif state.collective == "batch_isend_irecv" and (wait := self.log.latest_message()):
            state = replace(state, collective=wait.op)
        moved = before != self._position()
        if wait is None or state.doing != "waiting" or moved or (wait.guessed and wait.op != state.collective):
            return state, replace(record, wait=None)
        return replace(state, whom=_whom(wait), group=wait.group), replace(record, wait=wait)

    def _position(self) -> tuple[int, int, int]:
        """Return the main thread's position. Frames are reused; the count of calls tells two visits apart."""
        frame = private_doors.frame_of(threading.main_thread().ident)
        return (id(frame), frame.f_lasti if frame else 0, self.log.moves)

    def _record(self, wait_of: int | None = None) -> RankRecord:
        others = set(threading.enumerate()) - {threading.main_thread(), self._answering}
        alone = all(type(thread).__module__.startswith("tqdm") for thread in others)
        return self.log.record(wait_of, alone)

    def _send(self, message: Any) -> None:
        with self._send_lock:
            self._control.send(message)


def _whom(wait: Wait) -> str:
    """Return which ranks a rank waits for, or "" if it waits for all of them."""
    if wait.peer is not None:
        return f"{'for' if wait.op == 'recv' else 'to'} rank {wait.peer}"
    if wait.root is not None:
        return f"{'to' if wait.op in ('reduce', 'gather') else 'from'} rank {wait.root}"
    world_size = int(os.environ.get("WORLD_SIZE", "0"))
    return f"with {name_ranks(wait.members)}" if 0 < len(wait.members) < world_size else ""
