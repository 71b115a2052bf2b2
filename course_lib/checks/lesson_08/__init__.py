"""The exercises of lesson 08, when ranks hang, and what their wrong answers share."""

from __future__ import annotations

import torch
import torch.distributed as dist


def mean_of_all(total, count):
    both = torch.tensor([float(total), float(count)], dtype=torch.float64)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()
