"""The exercises of lesson 04, accumulation, and the model and data that they share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FEATURES = 2


def examples(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a micro-batch: linear with noise, far enough from 0 that gradients need
    clipping.
    """
    inputs = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return inputs, inputs.sum(dim=1, keepdim=True) * 2 + 5 + noise


def linear(weight: Tensor) -> nn.Linear:
    model = nn.Linear(FEATURES, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.zero_()
    return model


def whole(micro_batches: list) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*micro_batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)
