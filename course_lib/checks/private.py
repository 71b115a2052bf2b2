"""What of an exercise's inputs each rank may know: its own, and of the others' only their form.

An answer can read the frames of whoever calls it. A rank that has the inputs of all ranks has the result without a
message; so each is sent its own alone. `drive` picks them as before: elsewhere there are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Share = Callable[[Any, int, int], Any]  # an input, the rank and the number of ranks: what this rank is sent of it


def inputs_of_rank(inputs: dict[str, Any], private: Mapping[str, Share], rank: int, ranks: int) -> dict[str, Any]:
    """The inputs as they are sent to one rank."""
    own = {name: private[name](value, rank, ranks) if name in private else value for name, value in inputs.items()}
    return apart(own)


def apart(value: Any) -> Any:
    """The same with memory of its own: a piece of a tensor travels with all of the tensor."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {name: apart(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(apart, value))
    return value


def by_rank(value: Any, rank: int, ranks: int) -> Any:
    """Of a list, or a tensor's rows, with one for each rank: this rank's."""
    return keep(value, rank)


def by_rank_inside(value: Any, rank: int, ranks: int) -> Any:
    """Of a list of such lists, or a tensor's second dimension: this rank's in each of them."""
    if isinstance(value, Tensor):
        return keep(value.transpose(0, 1), rank).transpose(0, 1)
    return [keep(each, rank) for each in value]


def on_first(value: Any, rank: int, ranks: int) -> Any:
    """All of it, on the first rank."""
    return value if rank == 0 else hollow(value)


def on_last(value: Any, rank: int, ranks: int) -> Any:
    """All of it, on the last rank."""
    return value if rank == ranks - 1 else hollow(value)


def keep(value: Any, place: int) -> Any:
    """What lies at one place, with the form of what lies at the others."""
    if isinstance(value, Tensor):
        kept = torch.zeros_like(value)
        kept[place] = value[place]
        return kept
    return type(value)(each if index == place else hollow(each) for index, each in enumerate(value))


def hollow(value: Any) -> Any:
    """The same form without the numbers."""
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {name: hollow(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(hollow, value))
    return None if value is None else type(value)()
