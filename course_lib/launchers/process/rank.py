"""The inside of a rank: bring the process group up, run the learner's function, report."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import linecache
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from course_lib import machine, trace
from course_lib.launchers.diagnosis import flight_recorder
from course_lib.launchers.diagnosis.call_log import CallLog, Record, Wait
from course_lib.launchers.diagnosis.errors import CannotSend, PeersLost, name_ranks
from course_lib.launchers.diagnosis.lost_peers import PeerRoster
from course_lib.launchers.diagnosis.stacks import Where, stack_of_exception, stack_of_frame, where
from course_lib.launchers.process import frameworks, output, payload, stop
from course_lib.launchers.process.messages import (
    DISMISS,
    LOCATE,
    LaunchSpec,
    Located,
    Raised,
    Returned,
    Started,
    Stop,
)
from course_lib.launchers.process.no_keyboard import close_keyboard
from course_lib.launchers.process.second_init import accept_second_init
from course_lib.launchers.tracing.clocks import clock_skew
from course_lib.launchers.tracing.profiler import profiled, take_collectives, take_profile

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase as Connection  # a pipe's end has another class on Windows

    from torch.distributed.distributed_c10d import Store

INSIDE_A_RANK = "COURSE_LIB_INSIDE_A_RANK"
LAUNCHED_HERE = "COURSE_LIB_LAUNCHED_HERE"  # by a notebook or a script, on one machine: nobody starts it again
A_DAY = 86_400.0  # the notebook's timeout is the one that counts
WAIT_IS_LONG = 0.3


def main(rank: int, spec: LaunchSpec, folder: str, control: Connection, stdout: Connection, stderr: Connection) -> None:
    """The rank's process, from its first line to its last. `folder` is the launch's own, for its store."""
    _stand_alone(folder, rank)
    atexit._clear()  # the server's, which ranks are forks of, are not theirs
    output.redirect(stdout, stderr)
    close_keyboard()
    sys.argv = list(spec.argv)
    rank_process = RankProcess(rank, control)
    roster: PeerRoster | None = None
    try:
        os.environ.update(rank_environment(rank, spec))
        linecache.cache.update(spec.sources)
        seed_generators(None if spec.seed is None else spec.seed + rank)
        skew = 0.0
        if spec.framework == frameworks.TORCH:
            store, peer_timeout = _meet(rank, spec, folder)
            roster = PeerRoster(store, rank, spec.ranks) if spec.rendezvous else None
            rank_process.log.install()
            accept_second_init(store, timeout=peer_timeout, on_new_group=rank_process.log.new_generation)
            skew = clock_skew(store) if spec.rendezvous else 0.0
        else:
            frameworks.join(spec.framework, rank)
        payload.send_cells_to_workers()
        rank_process.run(spec.call, profile=spec.profile, skew=skew)
    except BaseException as error:
        rank_process.report((roster and roster.explain(error)) or error)
        run_exit_functions()
    rank_process.dismissed.wait()


def _meet(rank: int, spec: LaunchSpec, folder: str) -> tuple[Store, float | None]:
    """Join the others; the store through which that was done, and how long a rank waits for another."""
    if spec.rendezvous is None:
        return join_process_group(rank, spec.ranks, store_file=os.path.join(folder, "store"), peer_timeout=A_DAY), A_DAY
    peer_timeout = spec.rendezvous.peer_timeout
    return join_process_group(rank, spec.ranks, peer_timeout=peer_timeout), peer_timeout


class RankProcess:
    """One rank's talk with its supervisor: it reports, and a thread of it answers while it computes."""

    def __init__(self, rank: int, control: Connection) -> None:
        self.rank, self._control, self._process = rank, control, os.getpid()
        self._sending = threading.RLock()
        self.log = CallLog()
        self._returned = False
        self._place: tuple | None = None
        self._looks = 0
        self.dismissed = threading.Event()
        trace.recorder.start(rank)
        self._answering = threading.Thread(target=self._answer, daemon=True, name="course_lib answers")
        self._answering.start()
        self._on_abort = self._speak_before_abort()

    def run(self, call: bytes, *, profile: bool = False, skew: float = 0.0) -> None:
        """Run the packed call and report what it returned, and when: `skew` later by the clock of rank 0's machine."""
        fn, args, kwargs = payload.unpack(call)
        payload.fill_main_module(fn)
        self._send(Started(self.rank, compared=flight_recorder.can_be_read()))
        with profiled() if profile else contextlib.nullcontext():
            began = time.monotonic()
            trace.recorder.look_at_core()
            value = _value_of(fn, *args, **kwargs)
            wait_for_gpu()
            trace.recorder.look_at_core()
            ended = time.monotonic()
        self._returned = True
        if os.getpid() != self._process:
            leave_as_child()
        end_program()
        packed = payload.pack_value(value)
        record = self._record()
        recorded = {"collectives": take_collectives(self.rank, record.calls), "profile": take_profile()}
        recorded |= {"stopped": stop.request.obeyed, "core_waits": trace.recorder.core_waits}
        report = Returned(self.rank, packed, trace.recorder.spans, record, began, ended, **recorded)
        self._send(report.later(skew) if skew else report)

    def report(self, error: BaseException) -> None:
        """Tell the supervisor what was raised, with the learner's own lines."""
        at = time.monotonic()
        if os.getpid() != self._process:
            leave_as_child(error)
        _flush()
        stack = [] if isinstance(error, (CannotSend, PeersLost)) else stack_of_exception(error.__traceback__)
        name, text = type(error).__qualname__, _text_of(error)
        trace.recorder.read(wait=False)  # the GPU may never come to the end of the last ones
        self._send(Raised(self.rank, at, name, text, stack, _packed(error), trace.recorder.spans, self._record()))

    def _answer(self) -> None:
        """Answer the supervisor, and speak up after a long wait; if the supervisor is gone, so is the launch."""
        while True:
            try:
                if not self._control.poll(WAIT_IS_LONG):
                    self._mention_long_wait()
                    continue
                message = self._control.recv()
            except (EOFError, OSError):
                os._exit(1)
            if message == LOCATE:
                self._send(Located(self.rank, *self._look()))
            elif isinstance(message, Stop):
                stop.request.ask(message.reason)
            elif message == DISMISS:
                self.dismissed.set()
                return

    def _mention_long_wait(self) -> None:
        """Tell which collectives led here, once, if the main thread has not moved since we last looked."""
        frame = _frame_of_main_thread()
        place = (id(frame), frame.f_lasti) if frame and not self._returned else None
        looks = self._looks + 1 if place == self._place else 0
        self._place, self._looks = place, looks
        if place and looks == 1:
            here, record = self._look()
            if here.doing == "waiting":
                self._send(Located(self.rank, here, record))

    def _speak_before_abort(self) -> Any:
        """Say which collectives were called before `abort()` ends this process.

        gloo aborts a rank that receives a message of the wrong size, from a thread of its own: Python's
        signal handlers would never run, and whoever called with the wrong shape would take it to the grave.
        """
        if not hasattr(os, "setsid"):
            return None

        @ctypes.CFUNCTYPE(None, ctypes.c_int)
        def last_words(_: int) -> None:
            self._send(Located(self.rank, *self._look()))

        libc = ctypes.CDLL(None)
        libc.signal.restype = ctypes.c_void_p
        libc.signal(signal.SIGABRT, last_words)
        return last_words  # to be kept as long as the process lives

    def _look(self) -> tuple[Where, Record]:
        """Where the rank is and what it has said; both of one moment, or else nothing is said of a wait."""
        if self._returned:
            return Where("returned"), self._record()
        frame = _frame_of_main_thread()
        before = frame and (id(frame), frame.f_lasti)
        stack = stack_of_frame(frame) if frame else []
        record = Record(alone=False)
        with contextlib.suppress(Exception):  # it is read while another thread writes: better no record than no answer
            record = self._record(wait_of=threading.main_thread().ident)
        wait = record.wait
        here = where(stack, wait.op if wait else self.log.pending())
        if here.doing == "running":
            here, wait = self._on_gpu(here)
        elif here.collective == "batch_isend_irecv" and (wait := self.log.latest_message()):
            here = replace(here, collective=wait.op)
        record = replace(record, wait=wait)
        frame = _frame_of_main_thread()
        moved = before != (frame and (id(frame), frame.f_lasti))
        if wait is None or here.doing != "waiting" or moved or (wait.guessed and wait.op != here.collective):
            return here, replace(record, wait=None)
        return replace(here, whom=_whom(wait), group=wait.group), record

    def _on_gpu(self, here: Where) -> tuple[Where, Wait | None]:
        """Where the rank's GPU is, if its Python is ahead of it or waits for it; else where its Python is."""
        if "torch" not in sys.modules or not sys.modules["torch"].cuda.is_initialized():
            return here, None
        wait, begun = self.log.gpu_wait()
        if wait is None:
            return here, None
        if not begun:
            return replace(here, doing="computing", collective=wait.op), None
        return replace(here, doing="waiting", collective=wait.op), wait

    def _record(self, wait_of: int | None = None) -> Record:
        busy = [
            thread
            for thread in threading.enumerate()
            if thread is not threading.main_thread()
            and thread is not self._answering
            and not type(thread).__module__.startswith("tqdm")
        ]
        return self.log.record(wait_of, busy_elsewhere=bool(busy))

    def _send(self, message: Any) -> None:
        with self._sending:
            self._control.send(message)


def _value_of(fn: Callable, *args: Any, **kwargs: Any) -> Any:
    """What the function returns; None if it ends the program without an error."""
    try:
        return fn(*args, **kwargs)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
        return None


def leave_as_child(error: BaseException | None = None) -> NoReturn:
    """End a process that the learner's function forked, and that returned from it or raised: it is not the rank."""
    if error is not None:
        traceback.print_exception(error)
    _flush()
    os._exit(error is not None)


def end_program() -> None:
    """What Python does when a program ends: wait for its threads, call what was registered for the exit, flush."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  (executors learn from it that they are done)
    run_exit_functions()


def run_exit_functions() -> None:
    """Call what the rank has registered with `atexit`, and let loggers write what they hold back."""
    atexit._run_exitfuncs()
    logging.shutdown()
    _flush()


def wait_for_gpu() -> None:
    """Return when this process's GPU has done all that it was asked to; what failed there is raised here."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _whom(wait: Wait) -> str:
    """For whom a rank waits, where that is not simply everybody."""
    if wait.peer is not None:
        return f"{'for' if wait.op == 'recv' else 'to'} rank {wait.peer}"
    if wait.root is not None:
        return f"{'to' if wait.op in ('reduce', 'gather') else 'from'} rank {wait.root}"
    everybody = int(os.environ.get("WORLD_SIZE", "0"))
    return f"with {name_ranks(wait.members)}" if 0 < len(wait.members) < everybody else ""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a program may have closed or replaced it
            stream.flush()


def _frame_of_main_thread() -> FrameType | None:
    ident = threading.main_thread().ident
    return None if ident is None else sys._current_frames().get(ident)


def rank_environment(rank: int, spec: LaunchSpec) -> dict[str, str]:
    """The variables that torchrun would set."""
    variables = {
        "RANK": rank,
        "LOCAL_RANK": spec.here.index(rank),
        "WORLD_SIZE": spec.ranks,
        "LOCAL_WORLD_SIZE": len(spec.here),
        "OMP_NUM_THREADS": machine.threads_per_rank(len(spec.here)),
        "GROUP_RANK": spec.here.start // len(spec.here),
        "GROUP_WORLD_SIZE": spec.ranks // len(spec.here),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": spec.ranks,
        "ROLE_NAME": "default",
        INSIDE_A_RANK: rank,
    }
    variables |= _for_nccl(len(spec.here))
    if spec.rendezvous is None:
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["MASTER_PORT"], LAUNCHED_HERE: rank}
        interface = machine.loopback_interface()
        variables |= {"GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface} if interface else {}
    else:
        variables |= {
            "MASTER_ADDR": spec.rendezvous.address,
            "MASTER_PORT": spec.rendezvous.port,
            "TORCHELASTIC_RUN_ID": spec.rendezvous.job,
            "TORCHELASTIC_RESTART_COUNT": spec.rendezvous.restarts,
        }
    return {name: str(value) for name, value in variables.items()}


def _for_nccl(ranks: int) -> dict[str, str]:
    """What NCCL's ranks need so that a hang can be explained, unless somebody has decided otherwise.

    The flight recorder keeps the last collectives, with the moment at which the GPU came to each: a rank whose GPU has
    not begun one is the one that the others wait for.
    """
    if not machine.gpus():
        return {}
    wanted = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_ENABLE_TIMING": "1"}
    kept = {name: value for name, value in wanted.items() if name not in os.environ}
    per_gpu = -(-ranks // machine.gpus())
    if per_gpu > 1 and "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        kept["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, 100 // per_gpu))  # a share of the GPU for each
    return kept


def join_process_group(
    rank: int, ranks: int, *, store_file: str | None = None, peer_timeout: float | None = None
) -> Store:
    """Bring up the process group on this rank's device: through a private file, or torchrun's rendezvous.

    A rank that waits for another longer than `peer_timeout` seconds raises; None leaves that to PyTorch.
    Returns the store through which the ranks have met.
    """
    import torch
    import torch.distributed as dist

    # torch offers both under this name alone, and does not mark them as exported.
    from torch.distributed import FileStore, set_debug_level_from_env  # pyright: ignore[reportPrivateImportUsage]

    local_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(machine.threads_per_rank(local_ranks))
    if index := machine.gpu_index():  # GPU 0 is the current one anyway, and to set it would start the driver
        torch.cuda.set_device(index)
    set_debug_level_from_env()  # read at import, which was before this launch's environment
    store = FileStore(store_file, ranks) if store_file else _torchruns_store()
    timeout = None if peer_timeout is None else timedelta(seconds=peer_timeout)
    dist.init_process_group(machine.backend(local_ranks), store=store, rank=rank, world_size=ranks, timeout=timeout)
    return store


def seed_generators(seed: int | None) -> None:
    """Seed Python's, NumPy's and PyTorch's generators; with None, each from the operating system's randomness.

    Ranks are forks of one process. Left alone, all of them would draw the same numbers, in every launch; ranks that
    torchrun starts do not, and a model that nobody broadcasts would be the same everywhere only here.
    """
    import torch

    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(None if seed is None else seed % 2**32)
    if seed is None:
        torch.seed()
    else:
        torch.manual_seed(seed)


def _torchruns_store() -> Store:
    """The store of a torchrun job, with a place in it for each attempt.

    After a restart it is the same store as before, with the addresses of ranks that are dead: one that finds such an
    address, and not yet the new one, waits for it for ever.
    """
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://"))
    return PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _stand_alone(folder: str, rank: int) -> None:
    """A process group of our own: an interrupt meant for the notebook passes us by, and our children die with us."""
    dump = open(os.path.join(folder, f"stack.{rank}"), "w")  # noqa: SIM115  (open as long as the process)
    faulthandler.enable(dump, all_threads=False)
    if hasattr(os, "setsid"):
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(signal.SIGUSR1, dump, all_threads=False)
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _packed(error: BaseException) -> bytes | None:
    """The exception as bytes, if it survives the journey: some unpickle only into another error."""
    try:
        data = payload.pack_value(error.with_traceback(None))
        payload.unpack(data)
        return data
    except Exception:
        return None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message could not be read)"
