"""Measure what a block of a rank's work costs: calls, bytes, peers, forwards, backwards, memory saved by autograd.

Wrap the work in `meter`::

    with meter() as spent:
        update(model, batch)
    print(spent.calls, spent.sent_to, spent.saved_bytes)

These are counts, not seconds, so they are the same on every machine, even a busy one. `saved_for_backward` and
`most_alive` measure memory alone: what autograd saves for the backward pass, and the peak of a function's tensors.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from course_lib.launchers import private_doors
from course_lib.launchers.diagnosis import call_log

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_FORWARDS = 2000  # calls recorded per module class


@dataclass
class Spent:
    """What this rank spent inside a `meter` block."""

    calls: dict[str, int] = field(default_factory=dict)  # collectives that this rank started, by name
    payload: dict[str, int] = field(default_factory=dict)  # bytes passed to them, by name
    sent_to: dict[int, int] = field(default_factory=dict)  # bytes of messages to each peer
    received_from: dict[int, int] = field(default_factory=dict)
    messages: int = 0  # sends
    waits: int = 0  # for collectives and messages; a call without `async_op` counts as one wait
    forwards: dict[str, list[list[int]]] = field(default_factory=dict)  # shape of the first input of each call
    backwards: int = 0
    saved_bytes: int = 0  # the peak that autograd saved for backward, not counting parameters

    def as_data(self) -> dict[str, Any]:
        """Return the counts as plain data, which a rank can return."""
        return asdict(self)


@contextmanager
def meter() -> Iterator[Spent]:
    """Yield a `Spent` with this rank's costs in the block. Counts collectives only on ranks started by `launch`."""
    spent, log = Spent(), call_log.of_this_process()
    waits_before = log.waits_so_far if log else 0
    before, messages_before = ({call.key for call in log.calls()}, log.messages_so_far()) if log else (set(), Counter())
    with _watching_modules(spent), _watching_backward(spent), _watching_saved_tensors(spent):
        yield spent
    if log is None:
        return
    spent.waits = log.waits_so_far - waits_before
    for call in log.calls():
        if call.key not in before:
            spent.calls[call.op] = spent.calls.get(call.op, 0) + 1
            spent.payload[call.op] = spent.payload.get(call.op, 0) + call.numbers * _itemsize(call.dtype)
    for message in log.messages_since(messages_before):
        whose = spent.sent_to if message.kind == "send" else spent.received_from
        whose[message.peer] = whose.get(message.peer, 0) + math.prod(message.shape) * _itemsize(message.dtype)
        spent.messages += message.kind == "send"


def _itemsize(dtype: str) -> int:
    import torch

    kind = getattr(torch, dtype, None)
    return kind.itemsize if isinstance(kind, torch.dtype) else 1


@contextmanager
def _watching_modules(spent: Spent) -> Iterator[None]:
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    me = threading.get_ident()

    def note(module: Any, arguments: tuple) -> None:
        calls = spent.forwards.setdefault(type(module).__name__, [])
        first = next((value for value in arguments if isinstance(value, torch.Tensor)), None)
        if threading.get_ident() == me and len(calls) < MOST_FORWARDS:
            calls.append([] if first is None else list(first.shape))

    handle = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _watching_backward(spent: Spent) -> Iterator[None]:
    import torch

    backward, grad = torch.autograd.backward, torch.autograd.grad

    def counted_backward(*arguments: Any, **keywords: Any) -> Any:
        spent.backwards += 1
        return backward(*arguments, **keywords)

    def counted_grad(*arguments: Any, **keywords: Any) -> Any:
        spent.backwards += 1
        return grad(*arguments, **keywords)

    torch.autograd.backward, torch.autograd.grad = counted_backward, counted_grad
    try:
        yield
    finally:
        torch.autograd.backward, torch.autograd.grad = backward, grad


@contextmanager
def _watching_saved_tensors(spent: Spent) -> Iterator[None]:
    with saved_tensors(lambda tensor: not (tensor.is_leaf and tensor.requires_grad)) as saved:
        try:
            yield
        finally:
            spent.saved_bytes = saved.peak


@dataclass
class SavedBytes:
    """Bytes that autograd holds for later backward passes: now, and at their peak."""

    bytes: int = 0
    peak: int = 0
    _users: Counter[int] = field(default_factory=Counter, repr=False)  # per storage: several tensors may share one

    def add(self, storage: int, size: int) -> None:
        """Count a tensor that was saved; a storage counts once, however many operations saved it."""
        self._users[storage] += 1
        if self._users[storage] == 1:
            self.bytes += size
            self.peak = max(self.peak, self.bytes)

    def remove(self, storage: int, size: int) -> None:
        """Count a tensor that the graph has freed."""
        self._users[storage] -= 1
        if not self._users[storage]:
            self.bytes -= size


@contextmanager
def saved_tensors(counts: Callable[[Tensor], bool]) -> Iterator[SavedBytes]:
    """Yield the bytes that autograd saves inside this context, without those that it frees again.

    `counts` says whether a tensor counts when it is saved.
    """
    import torch

    saved = SavedBytes()

    def pack(tensor: Tensor) -> _Saved:
        wrapped = _Saved(tensor)
        if counts(tensor):
            storage = tensor.untyped_storage()
            place, size = storage.data_ptr(), storage.nbytes()
            saved.add(place, size)
            weakref.finalize(wrapped, saved.remove, place, size).atexit = False
        return wrapped

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda wrapped: wrapped.tensor):
        yield saved


class _Saved:
    """Wraps a saved tensor; it is garbage-collected when the graph frees the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


T = TypeVar("T")


@contextmanager
def saved_for_backward(model: nn.Module, *others: Tensor) -> Iterator[SavedBytes]:
    """Count the bytes that autograd saves inside this context, and those that it frees again.

    The model's parameters and the tensors in `others` do not count. A sharded model has different parameters while a
    block is gathered; we look at the ones it has *when* a tensor is saved.
    """
    known = {_storage(tensor) for tensor in others}
    with saved_tensors(lambda tensor: _storage(tensor) not in known | _parameters_of(model)) as saved:
        yield saved


def most_alive(function: Callable[..., T], *arguments: Any) -> tuple[T, int]:
    """Return a function's result, and the peak number of bytes of the tensors that it made.

    This includes everything that autograd holds, and what `torch.utils.checkpoint` keeps for it.
    """
    from torch import Tensor

    class Watch(private_doors.dispatch_mode()):
        now, most = 0, 0

        def __init__(self) -> None:
            super().__init__()
            self.there: set[int] = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            given = {private_doors.storage_id(one.untyped_storage()) for one in args if isinstance(one, Tensor)}
            results = func(*args, **(kwargs or {}))
            for one in results if isinstance(results, (list, tuple)) else [results]:
                if isinstance(one, Tensor):
                    self.track(one.untyped_storage(), given)
            return results

        def track(self, storage, given: set[int]) -> None:
            place, size = private_doors.storage_id(storage), storage.nbytes()
            if place not in self.there and place not in given:
                self.there.add(place)
                self.now += size
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.let_go, place, size)

        def let_go(self, place: int, size: int) -> None:
            self.there.discard(place)
            self.now -= size

    with Watch() as watch:
        results = function(*arguments)
    return results, watch.most


def _parameters_of(model: nn.Module) -> set[int]:
    """Return the storages of the model's parameters. Sharded ones (DTensors) live elsewhere while they are in use."""
    from torch import nn

    return {_storage(parameter) for parameter in model.parameters() if type(parameter) is nn.Parameter}


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
