"""Where the memory of a training step goes, by formula, and what autograd keeps for the backward pass, counted."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from course_lib.data import Batch
from course_lib.lstm.model import Embed, Project, Recurrent, SequenceModel

T = TypeVar("T")

# What the backward pass of an LSTM cell must know, in numbers per hidden unit: the four gates, c, tanh(c) and h.
NUMBERS_PER_UNIT = 7


@dataclass(frozen=True)
class Memory:
    """Bytes that a training step needs, by what they are for."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return sum(astuple(self))

    def __str__(self) -> str:
        parts = [f"{name} {size / 2**20:.2f} MiB" for name, size in vars(self).items()]
        return ", ".join(parts) + f": {self.total / 2**20:.2f} MiB"


@dataclass(frozen=True)
class BatchSize:
    """How large a batch would be, if there were one: all that a formula needs to know of it."""

    steps: int
    sequences: int


def predict_memory(model: SequenceModel, batch: Batch | BatchSize, *, optimizer_numbers: int = 2) -> Memory:
    """Counted, without running anything.

    `optimizer_numbers` is per parameter: 2 for Adam, 1 for momentum, 0 for plain SGD.

    Activations: 7 numbers per hidden unit, step and sequence in every LSTM layer, and the inputs of the way out.
    """
    blocks = [predict_block_memory(*numbered, batch, optimizer_numbers) for numbered in model.numbered()]
    return Memory(*(sum(parts) for parts in zip(*map(astuple, blocks), strict=True)))


def predict_block_memory(place: int, block: nn.Module, batch: Batch | BatchSize, optimizer_numbers: int = 2) -> Memory:
    """The share of the block at this place of the model. The first block's inputs are the batch: they count nowhere."""
    size = next(block.parameters()).element_size()
    parameters = size * count_parameters(block)
    numbers = 0
    if isinstance(block, Recurrent):
        numbers = NUMBERS_PER_UNIT * block.lstm.hidden_size
    elif isinstance(block, Project) and place > 0:
        numbers = block.linear.in_features
    activations = size * batch.steps * batch.sequences * numbers
    return Memory(parameters, parameters, optimizer_numbers * parameters, activations)


def count_parameters(block: nn.Module) -> int:
    """By formula."""
    if isinstance(block, Recurrent):
        return count_lstm_parameters(block.lstm.hidden_size)
    if isinstance(block, Project):
        return block.linear.in_features * block.linear.out_features + block.linear.out_features
    if isinstance(block, Embed):
        return block.table.num_embeddings * block.table.embedding_dim
    return sum(parameter.numel() for parameter in block.parameters())


def count_lstm_parameters(hidden: int) -> int:
    """An LSTM layer has 4 gates, each with two square matrices and two biases."""
    return 4 * (2 * hidden * hidden + 2 * hidden)


@dataclass
class SavedBytes:
    """Bytes that autograd keeps for backward passes to come: now, and at most so far."""

    bytes: int = 0
    peak: int = 0
    _users: Counter = field(default_factory=Counter, repr=False)  # of each storage: several tensors may share one

    def take(self, storage: int, size: int) -> None:
        self._users[storage] += 1
        if self._users[storage] == 1:
            self.bytes += size
            self.peak = max(self.peak, self.bytes)

    def give_back(self, storage: int, size: int) -> None:
        self._users[storage] -= 1
        if not self._users[storage]:
            self.bytes -= size


@contextmanager
def saved_for_backward(model: nn.Module, *others: Tensor) -> Iterator[SavedBytes]:
    """Count what autograd saves inside the block, and what it lets go again.

    The model's parameters, and `others` that are there anyway, do not count. A sharded model has other parameters
    while a block is gathered: those that it has *when* something is saved are meant.
    """
    saved, known = SavedBytes(), {_storage(tensor) for tensor in others}

    class SavedTensor:
        """A tensor for as long as the graph needs it."""

        def __init__(self, tensor: Tensor) -> None:
            self.tensor, self.storage, self.size = tensor, _storage(tensor), tensor.untyped_storage().nbytes()
            self.counts = self.storage not in known and self.storage not in _parameters_of(model)
            if self.counts:
                saved.take(self.storage, self.size)

        def __del__(self) -> None:
            if self.counts:
                saved.give_back(self.storage, self.size)

    with torch.autograd.graph.saved_tensors_hooks(SavedTensor, lambda saved_tensor: saved_tensor.tensor):
        yield saved


def most_alive(function: Callable[..., T], *arguments: Any) -> tuple[T, int]:
    """What a function returns, and how many bytes of tensors that it made were there at a time, at most.

    What autograd holds is among them, whoever asked it to; so is what `torch.utils.checkpoint` keeps for it.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        now, most = 0, 0

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # or all of it would be imported, for seconds

        def __init__(self) -> None:
            super().__init__()
            self.there: set[int] = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            given = {one.untyped_storage()._cdata for one in args if isinstance(one, Tensor)}
            results = func(*args, **(kwargs or {}))
            for one in results if isinstance(results, (list, tuple)) else [results]:
                if isinstance(one, Tensor):
                    self.take(one.untyped_storage(), given)
            return results

        def take(self, storage, given: set[int]) -> None:
            place, size = storage._cdata, storage.nbytes()
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
    """Where the model's parameters lie now. Those that are sharded, as DTensors, lie elsewhere while they are used."""
    return {_storage(parameter) for parameter in model.parameters() if type(parameter) is nn.Parameter}


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
