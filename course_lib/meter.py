"""Measure what a block of a rank's work costs: calls, bytes, peers, forwards, backwards, memory saved by autograd.

Wrap the work in `meter`::

    with meter() as spent:
        update(model, batch)
    print(spent.calls, spent.sent_to, spent.saved_bytes)

These are counts, not seconds, so they are the same on every machine, even a busy one.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from course_lib.launchers.diagnosis import call_log

if TYPE_CHECKING:
    from torch import Tensor

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
    """Track what the autograd graph holds. A storage counts once, however many operations saved it."""
    import torch

    holders: Counter[int] = Counter()
    held = 0

    def let_go(storage: int, size: int) -> None:
        nonlocal held
        holders[storage] -= 1
        if not holders[storage]:
            del holders[storage]
            held -= size

    def pack(tensor: Tensor) -> _Saved:
        nonlocal held
        saved = _Saved(tensor)
        if not (tensor.is_leaf and tensor.requires_grad):
            storage = tensor.untyped_storage()
            place, size = storage.data_ptr(), storage.nbytes()
            holders[place] += 1
            held += size if holders[place] == 1 else 0
            spent.saved_bytes = max(spent.saved_bytes, held)
            weakref.finalize(saved, let_go, place, size).atexit = False
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        yield


class _Saved:
    """Wraps a saved tensor; it is garbage-collected when the graph frees the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
