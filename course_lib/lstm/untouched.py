"""Run a model without a trace: what a trial changes besides its outputs is put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from course_lib.machine import device


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """In the block, random numbers may be drawn and seeds set; afterwards the generators stand where they stood."""
    where = device()
    with torch.random.fork_rng([where] if where.type == "cuda" else []):
        yield


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """In the block, the model may be run; afterwards its buffers and the random numbers are as they were."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with own_random_numbers():
        try:
            yield
        finally:
            for buffer, values in before:
                buffer.data.copy_(values)  # unseen by autograd: a graph may have saved the buffer, as BatchNorm's does
