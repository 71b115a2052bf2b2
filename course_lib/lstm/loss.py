"""Losses are sums with counts.

A mean cannot be added up: the mean over two ranks' means is not the mean over their tokens, unless both have equally
many. A sum and a count can, over micro-batches, time chunks, ranks and stages. The division happens once, at the
very end, by the global count.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from course_lib.data import Batch

Loss = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]


def squared_error(outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The sum of squared errors over the steps that count, and their number. `outputs` is (steps, sequences, 1)."""
    # Where a step does not count it is its own target: whatever came out there, not-a-number too, adds nothing.
    counted = outputs.squeeze(-1).where(batch.mask, batch.targets)
    return functional.mse_loss(counted, batch.targets, reduction="sum"), batch.mask.sum()


def cross_entropy(outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The sum of cross-entropies over the steps that count, and their number.

    `outputs` is (steps, sequences, classes).
    """
    ignored = -100
    targets = batch.targets.masked_fill(~batch.mask, ignored)
    total = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=ignored, reduction="sum")
    return total, batch.mask.sum()
