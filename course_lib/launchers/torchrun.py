"""The same function as a job: from a file, on ranks that this module launches or that torchrun started.

course run train.py:main --ranks 4 steps=10 -- --lr 3
torchrun --nproc-per-node 4 -m course_lib run train.py:main steps=10 -- --lr 3
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from course_lib import trace
from course_lib.launchers.diagnosis.errors import LaunchError, RankFailed
from course_lib.launchers.diagnosis.lost_peers import PeerRoster
from course_lib.launchers.diagnosis.stacks import stack_of_exception
from course_lib.launchers.local import launch, warm_up
from course_lib.launchers.process.rank import INSIDE_A_RANK, join_process_group
from course_lib.launchers.run import Run
from course_lib.launchers.slurm.cluster import Slurm


class BadJob(ValueError):
    """The job cannot start: the sentence says what to change."""


class CannotImport(LaunchError):
    """The job's own file raises while it is imported; its lines follow the sentence."""


def started_by_torchrun() -> bool:
    """Whether this process is one rank of a job that another program started, and may start again."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def restarts() -> int:
    """How often torchrun or Slurm has brought this rank's job back after a fault."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if started_by_torchrun() else 0


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """While nothing runs yet, Ctrl-C ends the program here and now.

    In the middle of an import an exception is not safe: some modules swallow it, others make another error of it.
    """

    def leave(*_: Any) -> None:
        os.write(2, b"course: interrupted\n")
        os._exit(130)

    in_charge = threading.current_thread() is threading.main_thread()
    if not in_charge or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def start_server() -> None:
    """`warm_up` a server that does not hear Ctrl-C: it would show which of its imports that has interrupted."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a new process inherits that
    try:
        warm_up()
    finally:
        signal.signal(signal.SIGINT, before)


def run_job(
    target: str,
    arguments: Iterable[str],
    *,
    ranks: int,
    timeout: float | None,
    on: Slurm | None = None,
    argv: Sequence[str] = (),
) -> Run:
    """Launch a function from a file on this machine or a cluster, exactly as a cell would, with `argv` to parse."""
    with leaving_at_once():
        fn, kwargs = _find_call(target, arguments, argv, launch)
    if on is None:
        start_server()
    return launch(fn, ranks=ranks, timeout=timeout, on=on, **kwargs)


def run_rank(
    target: str,
    arguments: Iterable[str],
    *,
    peer_timeout: float | None = None,
    record: bool = False,
    argv: Sequence[str] = (),
) -> Run | None:
    """Be one rank of a torchrun job. Rank 0 returns the whole run, the others None."""
    speak_as_rank()
    with leaving_at_once():
        fn, kwargs = _find_call(target, arguments, argv, run_here)
    return run_here(fn, peer_timeout=peer_timeout, record=record, **kwargs)


def _find_call(
    target: str, arguments: Iterable[str], argv: Sequence[str], runner: Callable
) -> tuple[Callable, dict[str, Any]]:
    """What `runner` is to call, with which keyword arguments: those it would take for its own are bound already."""
    sys.argv = [target.rpartition(":")[0], *argv]  # as if the file were the program; it may look while it is imported
    fn, kwargs = find_function(target), parse(arguments)
    _check_arguments(target, fn, kwargs)
    bound = {name: value for name, value in kwargs.items() if name in inspect.signature(runner).parameters}
    return (partial(fn, **bound) if bound else fn), {name: kwargs[name] for name in kwargs.keys() - bound.keys()}


def _check_arguments(target: str, fn: Callable, kwargs: dict[str, Any]) -> None:
    """Refuse, before any rank starts, what the function does not take."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some written in C do not say
        return
    try:
        signature.bind_partial(**kwargs)  # first what it does not take, then what it misses
        signature.bind(**kwargs)
    except TypeError as error:
        takes = ", ".join(map(str, signature.parameters)) or "no arguments"
        raise BadJob(f"{target}: {error}; the function takes {takes}") from None


def speak_as_rank() -> int:
    """Tag what this rank of a torchrun job prints from now on. Returns the rank."""
    rank = int(os.environ["RANK"])
    os.environ[INSIDE_A_RANK] = str(rank)
    sys.stdout, sys.stderr = TaggedStream(sys.stdout, rank), TaggedStream(sys.stderr, rank)
    return rank


def run_here(
    fn: Callable, *args: Any, peer_timeout: float | None = None, record: bool = False, **kwargs: Any
) -> Run | None:
    """Run a function as one rank of a torchrun job. Rank 0 returns the whole run, the others None.

    Its spans are recorded if asked for: to time one, a rank waits for its GPU.
    """
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    roster = PeerRoster(join_process_group(rank, ranks, peer_timeout=peer_timeout), rank, ranks)
    if record:
        trace.recorder.start(rank)
    began = time.monotonic()
    try:
        value = fn(*args, **kwargs)
    except Exception as error:
        if lost := roster.explain(error):
            raise lost from error
        stack = stack_of_exception(error.__traceback__)
        raise RankFailed(f"{type(error).__qualname__}: {error}", rank=rank, exception=error, stack=stack) from error
    seconds = time.monotonic() - began
    spans = [span.since(began) for span in trace.recorder.spans]
    gathered: list[Any] | None = [None] * ranks if rank == 0 else None
    dist.gather_object((value, seconds, spans), gathered)
    dist.destroy_process_group()
    if gathered is None:
        return None
    values, all_seconds, all_spans = zip(*gathered, strict=True)
    return Run(tuple(values), max(all_seconds), spans=[span for spans in all_spans for span in spans])


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
    if not os.path.isfile(file):
        return _load_module(str(file))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise BadJob(f"{file}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.absolute().parent))
    sys.modules[file.stem] = module
    with _imported(file):
        spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    if all(part.isidentifier() for part in name.split(".")):
        with _imported(name):
            if _is_module(name):
                return importlib.import_module(name)
    raise BadJob(f"{name}: there is no such file or module (looked from {Path.cwd().name}/)")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None  # imports the packages above it
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            return False
        raise  # it is there, and misses another one


@contextlib.contextmanager
def _imported(name: str | Path) -> Iterator[None]:
    """Where somebody's own code is imported: what it raises is told in its own lines, without ours above them."""
    try:
        yield
    except SystemExit:
        raise CannotImport(
            f"{name} ends the program while it is imported; put what does so below `if __name__ == '__main__':`"
        ) from None
    except Exception as error:
        own = error.__traceback__
        while own and (own.tb_frame.f_code.co_filename == __file__ or "importlib" in own.tb_frame.f_code.co_filename):
            own = own.tb_next
        *lines, last = traceback.format_exception(type(error), error, own)
        told = "".join(lines).removeprefix("Traceback (most recent call last):\n")
        raise CannotImport(f"{name} cannot be imported, it raises {last.strip()}\n\n{told}".rstrip()) from None


def parse(arguments: Iterable[str]) -> dict[str, Any]:
    """`steps=10 name=adam` as keyword arguments: Python literals where they are some, else text."""
    parsed = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            raise BadJob(f"{argument}: give the function's arguments as name=value, for example steps=10")
        parsed[name] = _literal(text)
    return parsed


def _literal(text: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, about the text as source
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # TypeError: {[]: 1}; the last two: ((((
        return text


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
