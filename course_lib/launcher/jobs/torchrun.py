"""Run a function from a file as a job, on ranks that this module launches or that torchrun started.

course run train.py:main --ranks 4 steps=10 -- --lr 3
torchrun --nproc-per-node 4 -m course_lib run train.py:main steps=10 -- --lr 3
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from course_lib.launcher.hangs.call_log import CallLog
from course_lib.launcher.hangs.errors import RankFailed
from course_lib.launcher.hangs.record import RankRecord
from course_lib.launcher.hangs.stacks import stack_of_exception
from course_lib.launcher.jobs.slurm import Slurm
from course_lib.launcher.jobs.target import check_arguments, find_function, parse
from course_lib.launcher.notebook.launch import launch
from course_lib.launcher.notebook.run import Run, run_of
from course_lib.launcher.rank.joining import A_DAY, INSIDE_A_RANK, PeerRoster, accept_second_init, join_process_group
from course_lib.launcher.rank.lifetime import end_program, value_of
from course_lib.launcher.tracing import recording
from course_lib.launcher.wire import pickling
from course_lib.launcher.wire.messages import Returned
from course_lib.runtime import machine, trace
from course_lib.runtime.interrupt import exiting_on_interrupt

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PIECE = 16 << 20  # bytes of a result per store entry


def run_job(
    target: str,
    arguments: Iterable[str],
    *,
    ranks: int,
    timeout: float | None,
    on: Slurm | None = None,
    argv: Sequence[str] = (),
) -> Run:
    """Launch a function from a file, exactly as a cell would, here or on a cluster. `argv` becomes `sys.argv[1:]`."""
    with exiting_on_interrupt():
        fn, kwargs = _find_call(target, arguments, argv, launch)
    return launch(fn, ranks=ranks, timeout=timeout, on=on, **kwargs)


def run_rank(
    target: str,
    arguments: Iterable[str],
    *,
    peer_timeout: float | None = None,
    record: bool = False,
    argv: Sequence[str] = (),
) -> Run | None:
    """Run a function from a file as one rank of a torchrun job. Rank 0 returns the whole run, the others None."""
    speak_as_rank()
    with exiting_on_interrupt():
        fn, kwargs = _find_call(target, arguments, argv, run_here)
    return run_here(fn, peer_timeout=peer_timeout, record=record, **kwargs)


def _find_call(
    target: str, arguments: Iterable[str], argv: Sequence[str], runner: Callable
) -> tuple[Callable, dict[str, Any]]:
    """Return a function and its keyword arguments. Those that `runner` has a parameter for are already bound."""
    sys.argv = [target.rpartition(":")[0], *argv]  # as if the file were the program; it may read them during import
    fn, kwargs = find_function(target), parse(arguments)
    check_arguments(target, fn, kwargs)
    bound = {name: value for name, value in kwargs.items() if name in inspect.signature(runner).parameters}
    return (partial(fn, **bound) if bound else fn), {name: kwargs[name] for name in kwargs.keys() - bound.keys()}


def speak_as_rank() -> int:
    """Tag everything that this rank of a torchrun job prints from now on. Returns the rank."""
    rank = int(os.environ["RANK"])
    os.environ[INSIDE_A_RANK] = str(rank)
    streams = TaggedStream(sys.stdout, rank), TaggedStream(sys.stderr, rank)
    for stream in streams:
        atexit.register(stream.finish)
    sys.stdout, sys.stderr = streams
    return rank


def leave(status: int) -> NoReturn:
    """End this program as Python does, without the interpreter's teardown, which takes half a second with torch.

    The teardown can also crash a rank of a torchrun job, whose gloo threads may still be freeing tensors. We saw one
    abort after it had finished ("terminate called without an active exception"), so torchrun reported a failed job.
    """
    end_program()
    os._exit(status)


def run_here(
    fn: Callable, *args: Any, peer_timeout: float | None = None, record: bool = False, **kwargs: Any
) -> Run | None:
    """Run a function as one rank of a torchrun job. Rank 0 returns the whole run, the others None.

    With `record`, its spans and collectives are recorded.
    """
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = join_process_group(rank, ranks, peer_timeout=peer_timeout)
    roster = PeerRoster(store, rank, ranks)
    accept_second_init(store, timeout=peer_timeout)
    log, skew = CallLog(), 0.0
    if record:
        log.install()
        trace.recorder.start(rank)
        skew = recording.clock_skew(store)
    started_at = time.monotonic()
    trace.recorder.look_at_core()
    try:
        value = value_of(fn, *args, **kwargs)
        machine.wait_for_gpu()
        trace.recorder.look_at_core()
        report = Returned(
            rank,
            b"",  # the function's value is sent beside the report
            trace.recorder.spans,
            RankRecord(),
            started_at,
            time.monotonic(),
            collectives=recording.take_collectives(rank, log.calls() if record else []),
            profile=recording.take_profile(),
            core_waits=trace.recorder.core_waits,
        ).later(recording.wall_minus_monotonic() + skew)
        gathered = _gather((value, report), store, rank, ranks, peer_timeout)
    except (Exception, SystemExit) as error:
        if peers_lost := roster.explain(error):
            raise peers_lost from error
        stack = stack_of_exception(error.__traceback__)
        raise RankFailed(f"{type(error).__qualname__}: {error}", rank=rank, exception=error, stack=stack) from error
    if dist.is_initialized():
        dist.destroy_process_group()
    if gathered is None:
        return None
    values, reports = zip(*gathered, strict=True)
    return run_of(values, reports, seconds=max(report.ended - report.began for report in reports))


def _gather(part: Any, store: Store, rank: int, ranks: int, timeout: float | None) -> list[Any] | None:
    """Return every rank's part on rank 0. Uses the store, because the function may have destroyed the process group."""
    if rank != 0:
        packed = pickling.pack_value(part)
        pieces = [packed[start : start + PIECE] for start in range(0, len(packed), PIECE)]
        for number, piece in enumerate(pieces):
            store.set(f"result {rank}/{number}", piece)  # pyright: ignore[reportArgumentType]  (it takes both)
        store.set(f"result {rank}", str(len(pieces)))
        return None
    patience = timedelta(seconds=timeout or A_DAY)
    parts = [part]
    for other in range(1, ranks):
        store.wait([f"result {other}"], patience)
        pieces = [store.get(f"result {other}/{number}") for number in range(int(store.get(f"result {other}")))]
        parts.append(pickling.unpack(b"".join(pieces)))
    return parts


class TaggedStream:
    """Writes whole lines, each prefixed with `[rank 2]`, because torchrun's ranks share one terminal."""

    def __init__(self, stream: TextIO, rank: int) -> None:
        self._stream, self._tag, self._rest = stream, f"[rank {rank}] ", ""

    def write(self, text: str) -> int:
        *whole, self._rest = (self._rest + text).split("\n")
        if whole:
            self._stream.write("".join(f"{self._tag}{line}\n" for line in whole))
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> None:
        """Write the last line if it has no newline."""
        if self._rest:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
