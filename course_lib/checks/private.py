"""Which of an exercise's inputs each rank receives: its own, and only the shapes of the others'.

An answer can read its callers' frames. With the inputs of all ranks, it could compute the result without a single
message, so each rank receives only its own inputs. The others are zeros, so `drive` indexes them as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Share = Callable[[Any, int, int], Any]  # (an input, rank, number of ranks) -> this rank's share


def inputs_of_rank(inputs: dict[str, Any], private: Mapping[str, Share], rank: int, ranks: int) -> dict[str, Any]:
    """Return the inputs to send to one rank."""
    own = {name: private[name](value, rank, ranks) if name in private else value for name, value in inputs.items()}
    return apart(own)


def apart(value: Any) -> Any:
    """Return a copy that shares no memory: pickling a view of a tensor would send the whole tensor."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {name: apart(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(apart, value))
    return value


def by_rank(value: Any, rank: int, ranks: int) -> Any:
    """Return a list or tensor that has one item or row per rank, with all but this rank's set to zero."""
    return keep(value, rank)


def by_rank_inside(value: Any, rank: int, ranks: int) -> Any:
    """Do what `by_rank` does for each item of a list, or along the second dimension of a tensor."""
    if isinstance(value, Tensor):
        return keep(value.transpose(0, 1), rank).transpose(0, 1)
    return [keep(each, rank) for each in value]


def on_first(value: Any, rank: int, ranks: int) -> Any:
    """Return the whole value on the first rank, and its hollow form elsewhere."""
    return value if rank == 0 else hollow(value)


def on_last(value: Any, rank: int, ranks: int) -> Any:
    """Return the whole value on the last rank, and its hollow form elsewhere."""
    return value if rank == ranks - 1 else hollow(value)


def keep(value: Any, place: int) -> Any:
    """Return a list, tuple or tensor with only the item at index `place`; the others are hollow."""
    if isinstance(value, Tensor):
        kept = torch.zeros_like(value)
        kept[place] = value[place]
        return kept
    return type(value)(each if index == place else hollow(each) for index, each in enumerate(value))


def hollow(value: Any) -> Any:
    """Return a value of the same form with all numbers zero."""
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {name: hollow(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(hollow, value))
    return None if value is None else type(value)()
