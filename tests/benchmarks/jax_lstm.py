"""Lesson 10's LSTM in JAX on a GPU, beside PyTorch's: `python -m tests.benchmarks.jax_lstm`.

Gradients in float64 first: are they the same? Then a forward and a backward pass in float32, TF32 off on both sides.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from course_lib import device
from course_lib.frameworks.other_frameworks import jax_layer
from course_lib.runtime import machine
from tests.benchmarks.calibration import computing_in
from tests.benchmarks.table import alternate, table, write_section

SEQUENCES, STEPS = 128, 128


def both(width: int, dtype: torch.dtype) -> tuple[Callable[[], list], Callable[[], list]]:
    """Return functions that compute PyTorch's and JAX's gradient of the mean of the outputs' squares.

    Weights and inputs are the same; the gradients are in JAX's layout: kernel, recurrent kernel, bias. PyTorch has two
    biases where JAX's cell has one.
    """
    import jax

    torch.manual_seed(0)
    layer = nn.LSTM(width, width, dtype=dtype)
    inputs = torch.randn(STEPS, SEQUENCES, width, dtype=dtype)
    weights = [layer.weight_ih_l0.T, layer.weight_hh_l0.T, layer.bias_ih_l0 + layer.bias_hh_l0]
    there = jax.device_put(([weight.detach().numpy().copy() for weight in weights], inputs.numpy()))

    def loss(weights: list, inputs: object) -> object:
        start = jax.numpy.zeros((inputs.shape[1], weights[1].shape[0]), inputs.dtype)
        return jax.numpy.mean(jax_layer(weights, inputs, (start, start))[1] ** 2)

    gradient = jax.jit(jax.grad(loss))
    layer, inputs = layer.to(device()), inputs.to(device())

    def ours() -> list:
        layer.zero_grad()
        layer(inputs)[0].square().mean().backward()
        machine.wait_for_gpu()
        return [layer.weight_ih_l0.grad.T, layer.weight_hh_l0.grad.T, layer.bias_ih_l0.grad]

    return ours, lambda: jax.block_until_ready(gradient(*there))


def main() -> None:
    """Compare, measure and write the table."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    ours, theirs = both(64, torch.float64)
    pairs = [(our.cpu().numpy(), np.asarray(their)) for our, their in zip(ours(), theirs(), strict=True)]
    off = max(np.abs(our - their).max() / np.abs(our).max() for our, their in pairs)
    rows = []
    with computing_in("float32"):
        for width in (256, 1024):
            ours_ms, theirs_ms = (1000 * seconds for seconds in alternate(both(width, torch.float32), 10, warm_up=2))
            rows.append([width, f"{ours_ms:.1f}", f"{theirs_ms:.1f}", f"{theirs_ms / ours_ms:.2f}"])
    write_section(
        "One LSTM in JAX and in PyTorch",
        f"JAX {jax.__version__} on {jax.devices()[0].platform}. Gradients in float64 differ by at most {off:.0e} of "
        f"the largest. Forward and backward in float32, {SEQUENCES} sequences of {STEPS} steps: `jax.lax.scan` under "
        "`jit`, and `torch.nn.LSTM`.",
        table("width | PyTorch, ms | JAX, ms | JAX / PyTorch", rows),
    )


if __name__ == "__main__":
    main()
