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
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from course_lib import machine, trace
from course_lib.launchers import private_doors
from course_lib.launchers.diagnosis import flight_recorder
from course_lib.launchers.diagnosis.call_log import CallLog
from course_lib.launchers.diagnosis.errors import CannotSend, PeersLost, name_ranks
from course_lib.launchers.diagnosis.record import RankRecord, Wait
from course_lib.launchers.diagnosis.stacks import Where, locate, stack_of_exception, stack_of_thread
from course_lib.launchers.process import lifetime, pickling, stop
from course_lib.launchers.process.blame import PeerRoster
from course_lib.launchers.process.joining import A_DAY, accept_second_init, join_process_group, rank_environment
from course_lib.launchers.process.lifetime import (
    close_keyboard,
    end_program,
    flush,
    leave_as_child,
    run_exit_functions,
    seed_generators,
    stand_alone,
)
from course_lib.launchers.process.messages import DISMISS, LOCATE, LaunchSpec, Located, Raised, Returned, Started, Stop
from course_lib.launchers.tracing.recording import (
    clock_skew,
    profiled,
    take_collectives,
    take_profile,
    wall_minus_monotonic,
)

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase as Connection  # pipes have a different class on Windows

    from torch.distributed.distributed_c10d import Store

WAIT_IS_LONG = 0.3


def main(rank: int, spec: LaunchSpec, folder: str, control: Connection, stdout: Connection, stderr: Connection) -> None:
    """Run a rank's process from start to end. `folder` is the launch's folder, which holds its store."""
    stand_alone(folder, rank)
    lifetime.redirect(stdout, stderr)
    close_keyboard()
    sys.argv = list(spec.argv)
    rank_process = RankProcess(rank, control)
    roster: PeerRoster | None = None
    if spec.rendezvous:  # the ranks' monotonic clocks began when their machines booted
        rank_process.ahead = wall_minus_monotonic()
    try:
        os.environ.update(rank_environment(rank, spec))
        linecache.cache.update(spec.sources)
        seed_generators(None if spec.seed is None else spec.seed + rank)
        store, peer_timeout = _join(rank, spec, folder)
        roster = PeerRoster(store, rank, spec.ranks) if spec.rendezvous else None
        rank_process.log.install()
        rank_process.destroyed_groups = accept_second_init(
            store, timeout=peer_timeout, on_new_group=rank_process.log.new_generation, every_time=spec.live
        )
        rank_process.ahead += clock_skew(store) if spec.rendezvous else 0.0
        pickling.send_cells_to_workers()
        if spec.live:
            serve, _, _ = pickling.unpack(spec.call)
            rank_process.log.start_over(generation=0)
            serve(rank_process, folder)
        else:
            rank_process.run(spec.call, profile=spec.profile)
    except BaseException as error:
        rank_process.report((roster and roster.explain(error)) or error)
        run_exit_functions()
    rank_process.dismissed.wait()


def _join(rank: int, spec: LaunchSpec, folder: str) -> tuple[Store, float | None]:
    """Join the other ranks. Returns the store used for the rendezvous, and how long a rank waits for a peer."""
    if spec.rendezvous is None:
        file = store_file(folder, generation=0)
        return join_process_group(rank, spec.ranks, store_file=file, peer_timeout=A_DAY), A_DAY
    peer_timeout = spec.rendezvous.peer_timeout
    return join_process_group(rank, spec.ranks, peer_timeout=peer_timeout), peer_timeout


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
        self._place: tuple | None = None
        self._looks = 0
        self.dismissed = threading.Event()
        trace.recorder.start(rank)
        self._answering = threading.Thread(target=self._answer, daemon=True, name="course_lib answers")
        self._answering.start()
        self._on_abort = self._report_before_abort()

    def run(self, call: bytes, *, profile: bool = False) -> None:
        """Run the pickled call and report its value and times."""
        fn, args, kwargs = pickling.unpack(call)
        pickling.fill_main_module(fn)
        self.announce()
        with profiled() if profile else contextlib.nullcontext():
            started_at = time.monotonic()
            trace.recorder.look_at_core()
            value = _value_of(fn, *args, **kwargs)
            machine.wait_for_gpu()
            trace.recorder.look_at_core()
            ended_at = time.monotonic()
        self.returned = True
        if os.getpid() != self._process:
            leave_as_child()
        end_program()
        self.finish(pickling.pack_value(value), started_at, ended_at)

    def start(self, task: int) -> None:
        """Begin a task of a live rank: spans and calls before it don't belong to it."""
        self.task, self.returned = task, False
        trace.recorder.start(self.rank)
        self.log.start_task()

    def finish(self, packed: bytes, started_at: float, ended_at: float) -> None:
        """Report a pickled value, and everything that was recorded since the start."""
        self.returned = True
        if os.getpid() != self._process:
            leave_as_child()
        record = self._record()
        recorded = {"collectives": take_collectives(self.rank, record.calls), "profile": take_profile()}
        recorded |= {"stopped": stop.request.obeyed, "core_waits": trace.recorder.core_waits, "task": self.task}
        report = Returned(self.rank, packed, trace.recorder.spans, record, started_at, ended_at, **recorded)
        self._send(report.later(self.ahead) if self.ahead else report)

    def announce(self) -> None:
        """Report that the process group is up and that this rank's work begins."""
        self._send(Started(self.rank, compared=flight_recorder.can_be_read()))

    def report(self, error: BaseException) -> None:
        """Report an exception to the supervisor, with the learner's lines of the stack."""
        at = time.monotonic() + self.ahead
        if os.getpid() != self._process:
            leave_as_child(error)
        flush()
        stack = [] if isinstance(error, (CannotSend, PeersLost)) else stack_of_exception(error.__traceback__)
        name, text = type(error).__qualname__, _text_of(error)
        trace.recorder.read(wait=False)  # the GPU may never reach the end of the last spans
        spans, record = [span.since(-self.ahead) for span in trace.recorder.spans], self._record()
        self.returned = True
        self._send(Raised(self.rank, at, name, text, stack, _pickled(error), spans, record, self.task))

    def _answer(self) -> None:
        """Answer the supervisor, and report a long wait unasked. If the supervisor is gone, end this process."""
        while True:
            try:
                if not self._control.poll(WAIT_IS_LONG):
                    self._report_long_wait()
                    continue
                message = self._control.recv()
            except (EOFError, OSError):
                os._exit(1)
            if message == LOCATE:
                self._send(Located(self.rank, *self._locate(), self.task))
            elif isinstance(message, Stop):
                stop.request.ask(message.reason)
            elif message == DISMISS:
                self.dismissed.set()
                self.obey(message)
                return
            else:
                self.obey(message)

    def _report_long_wait(self) -> None:
        """Report where the rank waits and its record, once, if the main thread has not moved since the last look."""
        place = None if self.returned else self._position()
        looks = self._looks + 1 if place == self._place else 0
        self._place, self._looks = place, looks
        if place and looks == 1:
            state, record = self._locate()
            if state.doing == "waiting":
                self._send(Located(self.rank, state, record, self.task))

    def _report_before_abort(self) -> Any:
        """Report which collectives were called before `abort()` ends this process.

        gloo aborts a rank that receives a message of the wrong size, and it does so from a C++ thread. Python's signal
        handlers would never run, and we would not learn which rank called with the wrong shape.
        """
        if not hasattr(os, "setsid"):
            return None

        @ctypes.CFUNCTYPE(None, ctypes.c_int)
        def report_before_abort(_: int) -> None:
            self._send(Located(self.rank, *self._locate(), self.task))

        libc = ctypes.CDLL(None)
        libc.signal.restype = ctypes.c_void_p
        libc.signal(signal.SIGABRT, report_before_abort)
        return report_before_abort  # the caller must keep a reference until the process ends

    def _locate(self) -> tuple[Where, RankRecord]:
        """Return where the rank is and its record. If it moved in between, the record has no wait."""
        if self.returned:
            return Where("returned"), self._record()
        before, stack = self._position(), stack_of_thread(threading.main_thread().ident)
        record = RankRecord(alone=False)
        with contextlib.suppress(Exception):  # another thread may be writing to it; no record is better than no answer
            record = self._record(wait_of=threading.main_thread().ident)
        wait = record.wait
        state = locate(stack, wait.op if wait else self.log.pending())
        if state.doing == "running":
            state, wait = self._on_gpu(state)
        elif state.collective == "batch_isend_irecv" and (wait := self.log.latest_message()):
            state = replace(state, collective=wait.op)
        record = replace(record, wait=wait)
        moved = before != self._position()
        if wait is None or state.doing != "waiting" or moved or (wait.guessed and wait.op != state.collective):
            return state, replace(record, wait=None)
        return replace(state, whom=_whom(wait), group=wait.group), record

    def _position(self) -> tuple[int, int, int]:
        """Return the main thread's position. Frames are reused; the count of calls tells two visits apart."""
        frame = private_doors.frame_of(threading.main_thread().ident)
        return (id(frame), frame.f_lasti if frame else 0, self.log.moves)

    def _on_gpu(self, state: Where) -> tuple[Where, Wait | None]:
        """Return where the rank's GPU is, if it has NCCL work left, and otherwise where its Python is."""
        if "torch" not in sys.modules or not sys.modules["torch"].cuda.is_initialized():
            return state, None
        wait, has_started = self.log.gpu_wait()
        if wait is None:
            return state, None
        if not has_started:
            return replace(state, doing="computing", collective=wait.op), None
        return replace(state, doing="waiting", collective=wait.op), wait

    def _record(self, wait_of: int | None = None) -> RankRecord:
        own_threads = (threading.main_thread(), self._answering)
        others = [thread for thread in threading.enumerate() if thread not in own_threads]
        busy = any(not type(thread).__module__.startswith("tqdm") for thread in others)
        return self.log.record(wait_of, busy_elsewhere=busy)

    def _send(self, message: Any) -> None:
        with self._send_lock:
            self._control.send(message)


def _value_of(fn: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return what the function returns, or None if it calls `sys.exit` without an error."""
    try:
        return fn(*args, **kwargs)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
        return None


def _whom(wait: Wait) -> str:
    """Return which ranks a rank waits for, or "" if it waits for all of them."""
    if wait.peer is not None:
        return f"{'for' if wait.op == 'recv' else 'to'} rank {wait.peer}"
    if wait.root is not None:
        return f"{'to' if wait.op in ('reduce', 'gather') else 'from'} rank {wait.root}"
    world_size = int(os.environ.get("WORLD_SIZE", "0"))
    return f"with {name_ranks(wait.members)}" if 0 < len(wait.members) < world_size else ""


def _pickled(error: BaseException) -> bytes | None:
    """Return the pickled exception, or None if pickling or unpickling it fails."""
    try:
        data = pickling.pack_value(error.with_traceback(None))
        pickling.unpack(data)
        return data
    except Exception:
        return None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message could not be read)"
