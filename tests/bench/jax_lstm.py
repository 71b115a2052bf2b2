"""Lesson 10's LSTM in JAX on a GPU, beside PyTorch's: `python -m tests.bench.jax_lstm`.

Gradients in float64 first: are they the same? Then a forward and a backward pass in float32, TF32 off on both sides.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from course_lib import device
from course_lib.lstm.other_frameworks import jax_layer
from tests.bench.calibration import computing_in
from tests.bench.table import describe_machine, write_section

SEQUENCES, STEPS = 128, 128


def jax_gradient(weights: list[np.ndarray], inputs: np.ndarray) -> Callable[[], list]:
    """A compiled function: the gradient of the mean of the outputs' squares, by kernel, recurrent kernel and bias."""
    import jax

    def loss(weights: list, inputs: object) -> object:
        start = jax.numpy.zeros((inputs.shape[1], weights[1].shape[0]), inputs.dtype)
        return jax.numpy.mean(jax_layer(weights, inputs, (start, start))[1] ** 2)

    gradient, there = jax.jit(jax.grad(loss)), jax.device_put((weights, inputs))
    return lambda: jax.block_until_ready(gradient(*there))


def torch_gradient(layer: nn.LSTM, inputs: torch.Tensor) -> Callable[[], list]:
    """The same with cuDNN, in JAX's layout; PyTorch has two biases where JAX's cell has one."""

    def gradient() -> list:
        layer.zero_grad()
        layer(inputs)[0].square().mean().backward()
        if inputs.is_cuda:
            torch.cuda.synchronize()
        return [layer.weight_ih_l0.grad.T, layer.weight_hh_l0.grad.T, layer.bias_ih_l0.grad]

    return gradient


def both(width: int, dtype: torch.dtype) -> tuple[Callable[[], list], Callable[[], list]]:
    """PyTorch's and JAX's gradient for the same weights and inputs."""
    torch.manual_seed(0)
    layer = nn.LSTM(width, width, dtype=dtype)
    inputs = torch.randn(STEPS, SEQUENCES, width, dtype=dtype)
    weights = [layer.weight_ih_l0.T, layer.weight_hh_l0.T, layer.bias_ih_l0 + layer.bias_hh_l0]
    arrays = [weight.detach().numpy().copy() for weight in weights]
    ours = torch_gradient(layer.to(device()), inputs.to(device()))
    return ours, jax_gradient(arrays, inputs.numpy())


def milliseconds(function: Callable[[], object]) -> float:
    """The median of ten calls, each waited for, after two more."""
    times = []
    for _ in range(12):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times[2:])


def main() -> None:
    """Compare, measure and write the table."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    ours, theirs = both(64, torch.float64)
    pairs = [(our.cpu().numpy(), np.asarray(their)) for our, their in zip(ours(), theirs(), strict=True)]
    off = max(np.abs(our - their).max() / np.abs(our).max() for our, their in pairs)
    lines = ["| width | PyTorch, ms | JAX, ms | JAX / PyTorch |", "|--:|--:|--:|--:|"]
    with computing_in("float32"):
        for width in (256, 1024) if torch.cuda.is_available() else (64,):
            ours_ms, theirs_ms = (milliseconds(function) for function in both(width, torch.float32))
            lines.append(f"| {width} | {ours_ms:.1f} | {theirs_ms:.1f} | {theirs_ms / ours_ms:.2f} |")
    write_section(
        "One LSTM in JAX and in PyTorch",
        f"`python -m tests.bench.jax_lstm`, on {describe_machine()}, "
        f"JAX {jax.__version__} on {jax.devices()[0].platform}.\n\n"
        f"Gradients in float64 differ by at most {off:.0e} of the largest. Forward and backward in float32, "
        f"{SEQUENCES} sequences of {STEPS} steps: `jax.lax.scan` under `jit`, and `torch.nn.LSTM`.\n\n"
        + "\n".join(lines),
    )


if __name__ == "__main__":
    main()
