"""The exercises of lesson 07, hybrid parallelism, and the helpers they share."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def own_group(tables: list[list[int]]):
    groups = [(dist.new_group(ranks), ranks) for ranks in tables]
    return next(group for group, ranks in groups if dist.get_rank() in ranks)


def bytes_put_in(spent: dict[str, Any]) -> int:
    """Return the bytes that a rank put into collectives and sent in messages."""
    return sum(spent["payload"].values()) + sum(spent["sent_to"].values())


def table(replicas: int, stages: int) -> str:
    """Describe a table of ranks in words."""
    return f"{replicas} replica{'s' * (replicas > 1)} of {stages} stage{'s' * (stages > 1)}"
