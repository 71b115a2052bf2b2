"""Copies on a stream of their own: every tensor once, in order, whatever the device."""

from __future__ import annotations

import pytest
import torch

from course_lib.data import copied_ahead

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_every_tensor_comes_once_and_in_order(device, count):
    tensors = [torch.full((1000,), float(number)) for number in range(count)]
    tensors = [each.pin_memory() for each in tensors] if device == "cuda" else tensors
    came = [each.square().sum().item() for each in copied_ahead(tensors, device)]
    assert came == [1000.0 * number**2 for number in range(count)]
