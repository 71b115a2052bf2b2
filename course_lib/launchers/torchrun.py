"""The same function as a job: from a file, on ranks that this module launches or that torchrun started.

course run train.py:main --ranks 4 steps=10
torchrun --nproc-per-node 4 -m course_lib run train.py:main steps=10
"""

from __future__ import annotations

import ast
import atexit
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

from course_lib import trace
from course_lib.launchers.diagnosis.errors import RankFailed
from course_lib.launchers.diagnosis.lost_peers import PeerRoster
from course_lib.launchers.diagnosis.stacks import stack_of_exception
from course_lib.launchers.local import launch
from course_lib.launchers.process import payload
from course_lib.launchers.process.rank import A_DAY, INSIDE_A_RANK, join_process_group
from course_lib.launchers.process.second_init import accept_second_init
from course_lib.launchers.run import Run
from course_lib.launchers.slurm.cluster import Slurm

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PIECE = 16 << 20  # bytes of a result that are put into the store at once


class BadJob(ValueError):
    """The job cannot start: the sentence says what to change."""


def started_by_torchrun() -> bool:
    """Whether this process is one rank of a job that another program started, and may start again."""
    return {"RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"} <= os.environ.keys()


def restarts() -> int:
    """How often torchrun or Slurm has brought this rank's job back after a fault."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if started_by_torchrun() else 0


def run_job(
    target: str, arguments: Iterable[str], *, ranks: int, timeout: float | None, on: Slurm | None = None
) -> Run:
    """Launch a function from a file on this machine or a cluster, exactly as a cell would."""
    return launch(find_function(target), ranks=ranks, timeout=timeout, on=on, **parse(arguments))


def run_rank(
    target: str, arguments: Iterable[str], *, peer_timeout: float | None = None, record: bool = False
) -> Run | None:
    """Be one rank of a torchrun job. Rank 0 returns the whole run, the others None."""
    speak_as_rank()
    return run_here(find_function(target), peer_timeout=peer_timeout, record=record, **parse(arguments))


def speak_as_rank() -> int:
    """Tag what this rank of a torchrun job prints from now on. Returns the rank."""
    rank = int(os.environ["RANK"])
    os.environ[INSIDE_A_RANK] = str(rank)
    streams = TaggedStream(sys.stdout, rank), TaggedStream(sys.stderr, rank)
    for stream in streams:
        atexit.register(stream.finish)
    sys.stdout, sys.stderr = streams
    return rank


def run_here(
    fn: Callable, *args: Any, peer_timeout: float | None = None, record: bool = False, **kwargs: Any
) -> Run | None:
    """Run a function as one rank of a torchrun job. Rank 0 returns the whole run, the others None.

    Its spans are recorded if asked for: to time one, a rank waits for its GPU.
    """
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = join_process_group(rank, ranks, peer_timeout=peer_timeout)
    roster = PeerRoster(store, rank, ranks)
    accept_second_init(store, timeout=peer_timeout)
    if record:
        trace.recorder.start(rank)
    began = time.monotonic()
    try:
        value = _value_of(fn, *args, **kwargs)
        seconds = time.monotonic() - began
        spans = [span.since(began) for span in trace.recorder.spans]
        gathered = _gather((value, seconds, spans), store, rank, ranks, peer_timeout)
    except Exception as error:
        if lost := roster.explain(error):
            raise lost from error
        stack = stack_of_exception(error.__traceback__)
        raise RankFailed(f"{type(error).__qualname__}: {error}", rank=rank, exception=error, stack=stack) from error
    if dist.is_initialized():
        dist.destroy_process_group()
    if gathered is None:
        return None
    values, all_seconds, all_spans = zip(*gathered, strict=True)
    return Run(tuple(values), max(all_seconds), spans=[span for spans in all_spans for span in spans])


def _value_of(fn: Callable, *args: Any, **kwargs: Any) -> Any:
    """What the function returns; None if it ends the program without an error."""
    try:
        return fn(*args, **kwargs)
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            return None
        raise RuntimeError(f"sys.exit({leaving.code!r})") from leaving


def _gather(part: Any, store: Store, rank: int, ranks: int, timeout: float | None) -> list[Any] | None:
    """Every rank's part, on rank 0. Through the store: the function may have destroyed the process group."""
    if rank != 0:
        packed = payload.pack_value(part)
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
        parts.append(payload.unpack(b"".join(pieces)))
    return parts


def find_function(target: str) -> Callable:
    """The function named by `path/to/file.py:function` or `package.module:function`."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise BadJob(f"{target}: name a file and a function in it, for example train.py:main")
    module = _load_file(Path(place))
    fn = getattr(module, name, None)
    if not callable(fn):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise BadJob(f"{place} has no function {name!r}; it defines {', '.join(own) or 'none'}")
    return fn


def _load_file(file: Path) -> ModuleType:
    if not file.is_file():
        return _load_module(str(file))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise BadJob(f"{file}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.absolute().parent))
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    try:
        found = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise BadJob(f"{name}: there is no such file or module (looked from {Path.cwd().name}/)")
    return importlib.import_module(name)


def parse(arguments: Iterable[str]) -> dict[str, Any]:
    """`steps=10 name=adam` as keyword arguments: Python literals where they are some, else text."""
    parsed = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            raise BadJob(f"{argument}: give the function's arguments as name=value, for example steps=10")
        try:
            parsed[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            parsed[name] = text
    return parsed


class TaggedStream:
    """Writes whole lines, each behind `[rank 2]`. torchrun's ranks share one terminal."""

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
        """Write what no newline has ended."""
        if self._rest:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
