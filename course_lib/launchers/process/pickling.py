"""Pickle calls and values for the trip between a notebook and its ranks.

`multiprocessing` cannot pickle a function that was defined in a cell; cloudpickle can, with the globals it uses.
CUDA tensors are sent as bytes: an argument ends up on the receiving rank's device, a returned value on the CPU, so
that neither side holds memory on the other's GPU.

Live ranks send large values through a file: a pipe would copy them four times, and each rank would get its own copy.
Only this user can read the file, and the receiver removes it. A tensor's file is mapped into memory, so its bytes are
written once and read when they are used.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import cloudpickle

from course_lib.launchers.diagnosis.errors import CannotSend


def pack_call(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> bytes:
    """Pickle the call `fn(*args, **kwargs)`. Raises `CannotSend` naming the value that cannot be pickled."""
    try:
        return _dumps((fn, args, kwargs), restore_cuda_tensor=_on_device_of_rank)
    except Exception as error:
        for name, value in _parts_of_call(fn, args, kwargs):
            reason = _reason_not_sent(value)
            if reason:
                raise CannotSend(f"{name} cannot be sent to the ranks: {reason}") from error
        raise CannotSend(f"{_name(fn)} cannot be sent to the ranks: {error}") from error


def pack_names(values: dict[str, Any]) -> bytes:
    """Pickle values for names on the ranks. Raises `CannotSend` naming the one that cannot be pickled."""
    try:
        return _dumps(values, restore_cuda_tensor=_on_device_of_rank)
    except Exception as error:
        reasons = {name: reason for name, value in values.items() if (reason := _reason_not_sent(value))}
        complaints = [f"{name!r} cannot be sent to the ranks: {reason}" for name, reason in reasons.items()]
        raise CannotSend("; ".join(complaints) or str(error)) from error


def pack_value(value: Any) -> bytes:
    """Pickle a returned value. Raises `CannotSend` naming the part of it that cannot be pickled."""
    try:
        return _dumps(value, restore_cuda_tensor=_on_cpu)
    except Exception as error:
        name, part = _find_unpicklable("the returned value", value)
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
            return _load_in_worker, (cloudpickle.dumps(obj),)
        return NotImplemented

    ForkingPickler.reducer_override = reducer_override  # pyright: ignore[reportAttributeAccessIssue]


def _load_in_worker(data: bytes) -> Any:
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
    def __init__(self, file: io.BytesIO, restore_cuda_tensor: Callable) -> None:
        super().__init__(file)
        self._restore = restore_cuda_tensor

    def reducer_override(self, obj: Any) -> Any:
        if _is_cuda_tensor(obj):
            return self._restore, (obj.detach().cpu(), obj.requires_grad)
        return super().reducer_override(obj)


def _dumps(value: Any, restore_cuda_tensor: Callable) -> bytes:
    file = io.BytesIO()
    _Pickler(file, restore_cuda_tensor).dump(value)
    return file.getvalue()


def _is_cuda_tensor(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(obj) is torch.Tensor and obj.is_cuda


def _on_device_of_rank(tensor: Any, requires_grad: bool) -> Any:
    from course_lib.machine import device

    return tensor.to(device()).requires_grad_(requires_grad)


def _on_cpu(tensor: Any, requires_grad: bool) -> Any:
    return tensor.requires_grad_(requires_grad)


def _parts_of_call(fn: Callable, args: tuple, kwargs: dict) -> Iterator[tuple[str, Any]]:
    """Yield everything that is sent with a call, each with the name a learner knows it by."""
    names = _parameter_names(fn)
    for index, value in enumerate(args):
        label = f"argument {names[index]!r}" if index < len(names) else f"argument {index}"
        yield label, value
    for name, value in kwargs.items():
        yield f"argument {name!r}", value
    if inspect.isfunction(fn):
        variables = inspect.getclosurevars(fn)
        for name, value in {**variables.globals, **variables.nonlocals}.items():
            yield f"{name!r}, which {_name(fn)} uses,", value


def _parameter_names(fn: Callable) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return []


def _find_unpicklable(name: str, value: Any) -> tuple[str, Any]:
    """Return the smallest part of a list, tuple or dict that cannot be pickled, and its name."""
    if isinstance(value, dict):
        parts = [(f"{name}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"{name}[{index}]", part) for index, part in enumerate(value)]
    else:
        return name, value
    for part_name, part in parts:
        if _reason_not_sent(part):
            return _find_unpicklable(part_name, part)
    return name, value


def _reason_not_sent(value: Any) -> str | None:
    try:
        _dumps(value, restore_cuda_tensor=_on_cpu)
    except Exception as error:
        return f"{error}"
    return None


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def _name(fn: Callable) -> str:
    return getattr(fn, "__name__", repr(fn))


LARGE = 1 << 20  # bytes


@dataclass(frozen=True)
class TensorFile:
    """A tensor whose bytes are in a file."""

    path: str
    dtype: Any
    shape: tuple[int, ...]
    requires_grad: bool


@dataclass(frozen=True)
class PickleFile:
    """A pickled value in a file."""

    path: str


def save_if_large(value: Any, folder: str) -> Any:
    """Save the value to a file in this folder if it is large. Returns the value itself, or a reference to the file."""
    torch = sys.modules["torch"]
    if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized:
        if value.nbytes < LARGE:
            return value
        path = _new_file(folder)
        value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tofile(path)
        return TensorFile(path, value.dtype, tuple(value.shape), value.requires_grad)
    packed = pack_value(value)
    return value if len(packed) < LARGE else PickleFile(_write_file(packed, folder))


def load_saved(value: Any) -> Any:
    """Return the value, and remove its file if it has one."""
    if not isinstance(value, (TensorFile, PickleFile)):
        return value
    try:
        if isinstance(value, PickleFile):
            return unpack(_read_file(value.path))
        import torch

        bytes_ = torch.from_file(value.path, shared=False, size=os.path.getsize(value.path), dtype=torch.uint8)
        return bytes_.view(value.dtype).view(value.shape).requires_grad_(value.requires_grad)
    finally:
        os.unlink(value.path)


@contextlib.contextmanager
def wrapped(packed: bytes) -> Iterator[bytes | PickleFile]:
    """Yield what to send to several ranks: these bytes, or, if they are large, a file that exists during the block."""
    if len(packed) < LARGE:
        yield packed
        return
    path = _write_file(packed, tempfile.gettempdir())
    try:
        yield PickleFile(path)
    finally:
        os.unlink(path)


def unwrap(packed: bytes | PickleFile) -> bytes:
    """Return the bytes that were sent."""
    return _read_file(packed.path) if isinstance(packed, PickleFile) else packed


def _write_file(packed: bytes, folder: str) -> str:
    path = _new_file(folder)
    with open(path, "wb") as file:
        file.write(packed)
    return path


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _new_file(folder: str) -> str:
    number, path = tempfile.mkstemp(prefix="course_lib-", dir=folder)
    os.close(number)
    return path
