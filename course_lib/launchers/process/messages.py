"""The messages between a rank, its supervisor and the notebook, and how values are pickled into them.

`multiprocessing` cannot pickle a function that was defined in a cell; cloudpickle can, with the globals it uses.
CUDA tensors are sent as bytes: an argument ends up on the receiving rank's device, a returned value on the CPU, so
that neither side holds memory on the other's GPU.
"""

from __future__ import annotations

import functools
import inspect
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Protocol

import cloudpickle

from course_lib.launchers.diagnosis.errors import CannotSend
from course_lib.launchers.diagnosis.record import Record
from course_lib.launchers.diagnosis.stacks import Frame, Where
from course_lib.launchers.tracing.events import Collective, Profile
from course_lib.trace import Span


def pack_call(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> bytes:
    """Pickle the call `fn(*args, **kwargs)`. Raises `CannotSend` naming the value that cannot be pickled."""
    try:
        return _dumps((fn, args, kwargs), cuda_tensors_land=_on_this_rank)
    except Exception as error:
        for name, value in _parts_of_call(fn, args, kwargs):
            reason = _why_not(value)
            if reason:
                raise CannotSend(f"{name} cannot be sent to the ranks: {reason}") from error
        raise CannotSend(f"{_name(fn)} cannot be sent to the ranks: {error}") from error


def pack_names(values: dict[str, Any]) -> bytes:
    """Pickle values for names on the ranks. Raises `CannotSend` naming the one that cannot be pickled."""
    try:
        return _dumps(values, cuda_tensors_land=_on_this_rank)
    except Exception as error:
        wrong = [f"{name!r} cannot be sent to the ranks: {why}" for name in values if (why := _why_not(values[name]))]
        raise CannotSend("; ".join(wrong) or str(error)) from error


def pack_value(value: Any) -> bytes:
    """Pickle a returned value. Raises `CannotSend` naming the part of it that cannot be pickled."""
    try:
        return _dumps(value, cuda_tensors_land=_as_it_is)
    except Exception as error:
        name, part = _culprit("the returned value", value)
        raise CannotSend(
            f"{name} ({_kind(part)}) cannot be sent back: {error}. Return tensors, numbers, text, "
            "or lists and dicts of them"
        ) from None


def unpack(data: bytes) -> Any:
    """Unpickle what `pack_call` or `pack_value` returned."""
    return cloudpickle.loads(data)


def send_cells_to_workers() -> None:
    """Send what was defined in a cell to processes that this one starts (DataLoader workers, `mp.spawn`).

    `multiprocessing` sends functions and classes by name and looks them up in the main module, but a worker's is empty.
    """
    from multiprocessing.reduction import ForkingPickler

    def reducer_override(_: Any, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            return _land_in_worker, (cloudpickle.dumps(obj),)
        return NotImplemented

    ForkingPickler.reducer_override = reducer_override  # pyright: ignore[reportAttributeAccessIssue]


def _land_in_worker(data: bytes) -> Any:
    send_cells_to_workers()  # a worker sends instances back
    return cloudpickle.loads(data)


def fill_main_module(fn: Callable) -> None:
    """Put the classes and functions that were sent with a call into the main module, where `pickle` looks for them.

    This lets a rank save a model whose class is defined in a cell, or send one to another rank.
    """
    main = sys.modules["__main__"]
    while isinstance(fn, functools.partial):
        fn = fn.func
    method = fn if inspect.isfunction(fn) or inspect.ismethod(fn) else fn.__call__
    function = getattr(method, "__func__", method)
    if getattr(function, "__module__", None) != "__main__":
        return
    for name, value in getattr(function, "__globals__", {}).items():
        if issubclass(type(value), (type, FunctionType)) and value.__module__ == "__main__":
            vars(main).setdefault(name, value)


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, cuda_tensors_land: Callable) -> None:
        super().__init__(file)
        self._land = cuda_tensors_land

    def reducer_override(self, obj: Any) -> Any:
        if _is_cuda_tensor(obj):
            return self._land, (obj.detach().cpu(), obj.requires_grad)
        return super().reducer_override(obj)


def _dumps(value: Any, cuda_tensors_land: Callable) -> bytes:
    file = io.BytesIO()
    _Pickler(file, cuda_tensors_land).dump(value)
    return file.getvalue()


def _is_cuda_tensor(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(obj) is torch.Tensor and obj.is_cuda


def _on_this_rank(tensor: Any, requires_grad: bool) -> Any:
    from course_lib.machine import device

    return tensor.to(device()).requires_grad_(requires_grad)


def _as_it_is(tensor: Any, requires_grad: bool) -> Any:
    return tensor.requires_grad_(requires_grad)


def _parts_of_call(fn: Callable, args: tuple, kwargs: dict) -> Iterator[tuple[str, Any]]:
    """Yield everything that is sent with a call, each with the name a learner knows it by."""
    names = _parameter_names(fn)
    for index, value in enumerate(args):
        known = f"argument {names[index]!r}" if index < len(names) else f"argument {index}"
        yield known, value
    for name, value in kwargs.items():
        yield f"argument {name!r}", value
    if inspect.isfunction(fn):
        used = inspect.getclosurevars(fn)
        for name, value in {**used.globals, **used.nonlocals}.items():
            yield f"{name!r}, which {_name(fn)} uses,", value


def _parameter_names(fn: Callable) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return []


def _culprit(name: str, value: Any) -> tuple[str, Any]:
    """Return the smallest part of a list, tuple or dict that cannot be pickled, and its name."""
    if isinstance(value, dict):
        parts = [(f"{name}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"{name}[{index}]", part) for index, part in enumerate(value)]
    else:
        return name, value
    for part_name, part in parts:
        if _why_not(part):
            return _culprit(part_name, part)
    return name, value


def _why_not(value: Any) -> str | None:
    try:
        _dumps(value, cuda_tensors_land=_as_it_is)
    except Exception as error:
        return f"{error}"
    return None


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def _name(fn: Callable) -> str:
    return getattr(fn, "__name__", repr(fn))


@dataclass(frozen=True)
class LaunchSpec:
    """One launch, as its supervisor receives it: all ranks, or those that run on one of several machines."""

    call: bytes
    ranks: int
    environment: dict[str, str]
    folder: str
    sources: dict[str, tuple] = field(repr=False)
    here: range  # the ranks that run on this machine
    argv: list[str] = field(default_factory=list)  # what the function finds in sys.argv
    profile: bool = False  # record with PyTorch's profiler
    framework: str = "torch"  # through which the ranks connect
    seed: int | None = None  # rank 2 uses seed + 2; None: every rank gets an unpredictable seed
    live: bool = False  # the call serves cells until the ranks are dismissed; it takes the rank's process and folder
    generation: int = 0  # of the process group that a rank joins first: live ranks make new ones
    idle: float | None = None  # seconds without a task after which live ranks are ended
    rendezvous: Rendezvous | None = None  # None: all ranks are on this machine and use a file


@dataclass(frozen=True)
class Rendezvous:
    """Where ranks on several machines find each other, and which attempt of the job this is."""

    address: str
    port: int
    job: str
    restarts: int = 0
    peer_timeout: float | None = None  # seconds a rank waits for a peer; None: PyTorch's default


@dataclass(frozen=True)
class Lines:
    """Whole lines that a rank printed."""

    rank: int
    lines: list[str]


@dataclass(frozen=True)
class Unfinished:
    """The unfinished line of a rank's output as it is now, for example a progress bar."""

    rank: int
    text: str


@dataclass(frozen=True)
class Started:
    """The rank's process group is up and its function starts. `compared`: whether its collectives can be compared."""

    rank: int
    compared: bool = True


@dataclass(frozen=True)
class Returned:
    """The rank's function returned. `began`, `ended` and the times of its recordings are monotonic times."""

    rank: int
    value: bytes
    spans: list[Span]
    record: Record
    began: float
    ended: float
    collectives: list[Collective] = field(default_factory=list)
    profile: Profile | None = None
    stopped: bool = False  # it returned early because it was asked to stop
    core_waits: list[tuple[float, float]] = field(default_factory=list)  # (time, seconds waited for a core by then)
    task: int = 0  # of a live rank: the task that this report is about

    def later(self, seconds: float) -> Returned:
        """Return the same report on a clock that is `seconds` ahead."""
        return replace(
            self,
            spans=[span.since(-seconds) for span in self.spans],
            began=self.began + seconds,
            ended=self.ended + seconds,
            collectives=[collective.since(-seconds) for collective in self.collectives],
            profile=self.profile and self.profile.since(-seconds),
            core_waits=[(at + seconds, waited) for at, waited in self.core_waits],
        )


@dataclass(frozen=True)
class Raised:
    """The rank's function raised. `exception` is pickled, or None if it cannot be."""

    rank: int
    at: float
    type_name: str
    text: str
    stack: list[Frame]
    exception: bytes | None
    spans: list[Span]
    record: Record
    task: int = 0


@dataclass(frozen=True)
class Died:
    """The rank's process ended on its own."""

    rank: int
    exitcode: int
    stack: list[Frame]
    at: float = 0.0  # when it was noticed


@dataclass(frozen=True)
class Located:
    """Where a rank is. A rank sends it when asked, and unasked when it has waited for a while.

    Without a record, it comes from the supervisor, for a rank that cannot answer.
    """

    rank: int
    where: Where
    record: Record | None
    task: int | None = None


@dataclass(frozen=True)
class SupervisorFailed:
    """The supervisor could not start the ranks, or failed. `text` says why and what to do."""

    text: str


class Channel(Protocol):
    """The notebook's end of the connection: a pipe to its supervisor, or a stand-in for those of several nodes."""

    def send(self, order: Any, /) -> None: ...

    def recv(self) -> Any: ...

    def poll(self, seconds: float | None, /) -> bool: ...
