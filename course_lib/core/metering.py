"""Measure what a block of a rank's work costs: calls, bytes, peers, forwards, backwards, memory saved by autograd.

Wrap the work in `meter`::

    with meter() as spent:
        update(model, batch)
    print(spent.calls, spent.sent_to, spent.saved_bytes)

These are counts, not seconds, so they are the same on every machine, even a busy one. `saved_for_backward` and
`most_alive` measure only memory: what autograd saves for the backward pass, and the peak of a function's tensors.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from course_lib.launcher.hangs import call_log
from course_lib.runtime import private_doors

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
MAX_FORWARDS = 2000  # calls recorded per module class


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
    saved_bytes: int = 0  # peak bytes that autograd held for backward, not counting parameters

    def as_data(self) -> dict[str, Any]:
        """Return the counts as plain data, which a rank can return."""
        return asdict(self)


@contextmanager
def meter() -> Iterator[Spent]:
    """Yield a `Spent` with this rank's costs in the block. Counts collectives only on ranks started by `launch`."""
    import torch

    spent, log = Spent(), call_log.of_this_process()
    waits_before = log.waits_so_far if log else 0
    keys_before = {call.key for call in log.calls()} if log else set()
    messages_before = log.messages_so_far() if log else Counter()
    with (
        _counting_forwards_and_backwards(spent),
        saved_tensors(lambda tensor: not (tensor.is_leaf and tensor.requires_grad)) as saved,
    ):
        yield spent
    spent.saved_bytes = saved.peak
    if log is None:
        return

    def bytes_of(numbers: int, dtype: str) -> int:
        kind = getattr(torch, dtype, None)
        return numbers * (kind.itemsize if isinstance(kind, torch.dtype) else 1)

    spent.waits = log.waits_so_far - waits_before
    for call in log.calls():
        if call.key not in keys_before:
            spent.calls[call.op] = spent.calls.get(call.op, 0) + 1
            spent.payload[call.op] = spent.payload.get(call.op, 0) + bytes_of(call.numbers, call.dtype)
    for message in log.messages_since(messages_before):
        bytes_by_peer = spent.sent_to if message.kind == "send" else spent.received_from
        size = bytes_of(math.prod(message.shape), message.dtype)
        bytes_by_peer[message.peer] = bytes_by_peer.get(message.peer, 0) + size
        spent.messages += message.kind == "send"


@contextmanager
def _counting_forwards_and_backwards(spent: Spent) -> Iterator[None]:
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    me = threading.get_ident()
    backward, grad = torch.autograd.backward, torch.autograd.grad

    def note(module: Any, arguments: tuple) -> None:
        calls = spent.forwards.setdefault(type(module).__name__, [])
        if threading.get_ident() == me and len(calls) < MAX_FORWARDS:
            shapes = [list(value.shape) for value in arguments if isinstance(value, torch.Tensor)]
            calls.append(shapes[0] if shapes else [])

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            spent.backwards += 1
            return method(*arguments, **keywords)

        return call

    handle = register_module_forward_pre_hook(note)
    torch.autograd.backward, torch.autograd.grad = counted(backward), counted(grad)
    try:
        yield
    finally:
        torch.autograd.backward, torch.autograd.grad = backward, grad
        handle.remove()


@dataclass
class SavedBytes:
    """Bytes that autograd holds for later backward passes: now, and at their peak."""

    bytes: int = 0
    peak: int = 0
    _users: Counter[int] = field(default_factory=Counter, repr=False)  # per storage: several tensors may share one

    def count(self, storage: int, size: int, users: int) -> None:
        """Note that a tensor was saved (`users=1`) or freed (-1). A storage counts once, however many saved it."""
        was_held = bool(self._users[storage])
        self._users[storage] += users
        self.bytes += size * (bool(self._users[storage]) - was_held)
        self.peak = max(self.peak, self.bytes)


@contextmanager
def saved_tensors(counts: Callable[[Tensor], bool]) -> Iterator[SavedBytes]:
    """Yield the bytes that autograd saves inside this context, minus those that it frees.

    `counts(tensor)` is called when a tensor is saved, and returns whether it counts.
    """
    import torch

    saved = SavedBytes()

    def pack(tensor: Tensor) -> _Saved:
        if not counts(tensor):
            return _Saved((tensor, None))
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        saved.count(place, size, 1)
        return _Saved((tensor, partial(saved.count, place, size, -1)))

    with torch.autograd.graph.saved_tensors_hooks(pack, itemgetter(0)):
        yield saved


class _Saved(tuple):
    """A saved tensor, and what to call when the graph frees it.

    No Python frame, here or in `pack`, holds it in a variable. Another thread that inspects this one's stack would keep
    that variable alive, and the tensor would count for too long.
    """

    def __del__(self) -> None:
        if self[1]:
            self[1]()


@contextmanager
def saved_for_backward(model: nn.Module, *others: Tensor) -> Iterator[SavedBytes]:
    """Yield the bytes that autograd saves inside this context, minus those that it frees.

    The model's parameters and the tensors in `others` do not count. A sharded model has different parameters while a
    block is gathered; we exclude the ones it has *when* a tensor is saved.
    """
    from torch import nn

    def counts(tensor: Tensor) -> bool:
        # Sharded parameters (DTensors) live elsewhere while they are in use.
        parameters = [parameter for parameter in model.parameters() if type(parameter) is nn.Parameter]
        excluded = {other.untyped_storage().data_ptr() for other in (*parameters, *others)}
        return tensor.untyped_storage().data_ptr() not in excluded

    with saved_tensors(counts) as saved:
        yield saved


def most_alive(function: Callable[..., T], *arguments: Any) -> tuple[T, int]:
    """Return a function's result, and the peak size in bytes of the tensors that it created.

    This includes everything that autograd holds, and everything that `torch.utils.checkpoint` stores for it.
    """
    from torch import Tensor

    class AliveBytes(private_doors.dispatch_mode()):
        bytes, peak = 0, 0
        alive: ClassVar[set[int]] = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            inputs = {private_doors.storage_id(value.untyped_storage()) for value in args if isinstance(value, Tensor)}
            results = func(*args, **(kwargs or {}))
            for value in results if isinstance(results, (list, tuple)) else [results]:
                if isinstance(value, Tensor):
                    storage = value.untyped_storage()
                    place, size = private_doors.storage_id(storage), storage.nbytes()
                    if place not in self.alive and place not in inputs:
                        self.alive.add(place)
                        self.bytes += size
                        self.peak = max(self.peak, self.bytes)
                        weakref.finalize(storage, self.remove, place, size)
            return results

        def remove(self, place: int, size: int) -> None:
            self.alive.discard(place)
            self.bytes -= size

    with AliveBytes() as alive:
        results = function(*arguments)
    return results, alive.peak
