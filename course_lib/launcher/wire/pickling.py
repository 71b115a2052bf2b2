"""Pickle calls and values for the trip between a notebook and its ranks.

`multiprocessing` cannot pickle a function that was defined in a cell; cloudpickle can, with the globals it uses.
CUDA tensors are sent as bytes: an argument ends up on the receiving rank's device, a returned value on the CPU, so
that neither side holds memory on the other's GPU.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import cloudpickle

from course_lib.launcher.hangs.errors import CannotSend


def pack_call(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> bytes:
    """Pickle the call `fn(*args, **kwargs)`. Raises `CannotSend` naming the value that cannot be pickled."""
    name = getattr(fn, "__name__", repr(fn))
    return _pack_for_ranks((fn, args, kwargs), {name: None} | dict(_parts_of_call(fn, args, kwargs)))


def pack_names(values: dict[str, Any]) -> bytes:
    """Pickle values for names on the ranks. Raises `CannotSend` naming the one that cannot be pickled."""
    return _pack_for_ranks(values, {repr(name): value for name, value in values.items()})


def _pack_for_ranks(value: Any, parts: dict[str, Any]) -> bytes:
    try:
        return _dumps(value, restore_cuda_tensor=_on_device_of_rank)
    except Exception as error:
        reasons = {name: reason for name, part in parts.items() if (reason := _reason_not_sent(part))}
        name, reason = next(iter(reasons.items()), (next(iter(parts)), error))
        raise CannotSend(f"{name} cannot be sent to the ranks: {reason}") from error


def pack_value(value: Any) -> bytes:
    """Pickle a returned value. Raises `CannotSend` naming the part of it that cannot be pickled."""
    try:
        return _dumps(value, restore_cuda_tensor=_on_cpu)
    except Exception as error:
        name, part = _find_unpicklable("the returned value", value)
        kind = type(part).__name__
        article = "an" if kind[0].lower() in "aeiou" else "a"
        advice = "Return tensors, numbers, text, or lists and dicts of them"
        raise CannotSend(f"{name} ({article} {kind}) cannot be sent back: {error}. {advice}") from None


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
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and obj.is_cuda:
            return self._restore, (obj.detach().cpu(), obj.requires_grad)
        return super().reducer_override(obj)


def _dumps(value: Any, restore_cuda_tensor: Callable) -> bytes:
    file = io.BytesIO()
    _Pickler(file, restore_cuda_tensor).dump(value)
    return file.getvalue()


def _on_device_of_rank(tensor: Any, requires_grad: bool) -> Any:
    from course_lib.runtime.machine import device

    return tensor.to(device()).requires_grad_(requires_grad)


def _on_cpu(tensor: Any, requires_grad: bool) -> Any:
    return tensor.requires_grad_(requires_grad)


def _parts_of_call(fn: Callable, args: tuple, kwargs: dict) -> Iterator[tuple[str, Any]]:
    """Yield everything that is sent with a call, each with the name a learner knows it by."""
    names: list[str] = []
    with contextlib.suppress(TypeError, ValueError):  # some C functions have no signature
        names = list(inspect.signature(fn).parameters)
    for index, value in enumerate(args):
        yield f"argument {names[index]!r}" if index < len(names) else f"argument {index}", value
    for name, value in kwargs.items():
        yield f"argument {name!r}", value
    if inspect.isfunction(fn):
        variables = inspect.getclosurevars(fn)
        for name, value in {**variables.globals, **variables.nonlocals}.items():
            yield f"{name!r}, which {fn.__name__} uses,", value


def _find_unpicklable(name: str, value: Any) -> tuple[str, Any]:
    """Return the smallest part of a list, tuple or dict that cannot be pickled, and its name."""
    parts = dict(enumerate(value)) if isinstance(value, (list, tuple)) else value if isinstance(value, dict) else {}
    for key, part in parts.items():
        if _reason_not_sent(part):
            return _find_unpicklable(f"{name}[{key!r}]", part)
    return name, value


def _reason_not_sent(value: Any) -> str:
    try:
        _dumps(value, restore_cuda_tensor=_on_cpu)
    except Exception as error:
        return f"{error}"
    return ""
