"""Measure what autograd saves for the backward pass, and the peak memory of a function's tensors."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from course_lib.launchers import private_doors

T = TypeVar("T")


@dataclass
class SavedBytes:
    """Bytes that autograd holds for later backward passes: now, and at their peak."""

    bytes: int = 0
    peak: int = 0
    _users: Counter = field(default_factory=Counter, repr=False)  # per storage: several tensors may share one

    def add(self, storage: int, size: int) -> None:
        self._users[storage] += 1
        if self._users[storage] == 1:
            self.bytes += size
            self.peak = max(self.peak, self.bytes)

    def remove(self, storage: int, size: int) -> None:
        self._users[storage] -= 1
        if not self._users[storage]:
            self.bytes -= size


@contextmanager
def saved_for_backward(model: nn.Module, *others: Tensor) -> Iterator[SavedBytes]:
    """Count the bytes that autograd saves inside this context, and those that it frees again.

    The model's parameters and the tensors in `others` do not count. A sharded model has different parameters while a
    block is gathered; we look at the ones it has *when* a tensor is saved.
    """
    saved, known = SavedBytes(), {_storage(tensor) for tensor in others}

    class SavedTensor:
        """A tensor for as long as the graph needs it."""

        def __init__(self, tensor: Tensor) -> None:
            self.tensor, self.storage, self.size = tensor, _storage(tensor), tensor.untyped_storage().nbytes()
            self.counts = self.storage not in known and self.storage not in _parameters_of(model)
            if self.counts:
                saved.add(self.storage, self.size)

        def __del__(self) -> None:
            if self.counts:
                saved.remove(self.storage, self.size)

    with torch.autograd.graph.saved_tensors_hooks(SavedTensor, lambda saved_tensor: saved_tensor.tensor):
        yield saved


def most_alive(function: Callable[..., T], *arguments: Any) -> tuple[T, int]:
    """Return a function's result, and the peak number of bytes of the tensors that it made.

    This includes everything that autograd holds, and what `torch.utils.checkpoint` keeps for it.
    """

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
    return {_storage(parameter) for parameter in model.parameters() if type(parameter) is nn.Parameter}


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
