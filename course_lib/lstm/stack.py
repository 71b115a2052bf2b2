"""Several LSTM layers in one call.

On a GPU, cuDNN runs a stack of layers as a wavefront: while one layer is at step t, the next is at step t-1. For wide
layers that is faster than layer after layer. For narrow ones it is not; `pays` uses measured thresholds. One call is
also one node of the autograd graph: none of its gradients is available before all are, so a strategy that sends
gradients during the backward pass runs the layers separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from course_lib.launchers import private_doors

State = tuple[Tensor, Tensor]  # (h, c), each (1, sequences, hidden)

# The hidden sizes from which one call was faster on an H200 (tests/bench). In half precision the kernels are short, so
# what counts is how fast the host can launch them, and one call per layer launches fewer.
WIDE, WIDE_IN_HALF = 512, 2048


def pays(hidden: int, inputs: Tensor) -> bool:
    """Return whether one call for several layers is expected to be faster than one call per layer."""
    in_half = inputs.dtype != torch.float32 or torch.is_autocast_enabled("cuda")
    return inputs.is_cuda and hidden >= (WIDE_IN_HALF if in_half else WIDE)


class Stack:
    """LSTM layers of one width as a single `nn.LSTM` that *shares the layers' parameters*."""

    def __init__(self, layers: Sequence[nn.LSTM]) -> None:
        self.weights = [parameter for layer in layers for parameter in private_doors.own_parameters(layer)]
        hidden = layers[0].hidden_size
        self.lstm = nn.LSTM(hidden, hidden, len(layers), device="meta")
        for number, layer in enumerate(layers):
            for name, parameter in layer.named_parameters():
                setattr(self.lstm, name.replace("_l0", f"_l{number}"), parameter)

    def is_of(self, layers: Sequence[nn.LSTM]) -> bool:
        """Return whether these layers still have the weights that the stack was built from."""
        now = [parameter for layer in layers for parameter in private_doors.own_parameters(layer)]
        return all(a is b for a, b in zip(now, self.weights, strict=True))

    def __call__(self, inputs: Tensor, states: Sequence[State | None]) -> tuple[Tensor, list[State]]:
        """Return the last layer's outputs, and every layer's new state. A state of None starts at zero."""
        if inputs.is_cuda:
            keep_flat(self.lstm)
        inputs, given = as_computed(inputs), None
        if any(state is not None for state in states):
            zeros = inputs.new_zeros(1, inputs.shape[1], self.lstm.hidden_size)
            pairs = [state if state is not None else (zeros, zeros) for state in states]
            given = tuple(as_computed(torch.cat(parts)) for parts in zip(*pairs, strict=True))
        outputs, (h, c) = self.lstm(inputs, given)
        return outputs, list(zip(h.split(1), c.split(1), strict=True))


def as_computed(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU in the active autocast dtype, if there is one; any other as it is.

    oneDNN assumes that every CPU has half-precision arithmetic, and fails without. On a GPU, PyTorch casts what cuDNN's
    LSTM computes to float16 whatever dtype autocast was given (pytorch/pytorch#42385), so casting here would only add a
    round trip between layers.
    """
    if not tensor.is_cpu or not torch.is_autocast_enabled("cpu"):
        return tensor
    return tensor.to(torch.get_autocast_dtype("cpu"))


def keep_flat(lstm: nn.LSTM) -> None:
    """Put the weights on a GPU into one contiguous buffer, as cuDNN wants them; otherwise it copies them at each call.

    A layer may run sometimes alone and sometimes in a stack, which need different orders, so each run restores its own.
    """
    weight, bias = cast(Tensor, lstm.weight_ih_l0), cast(Tensor, lstm.bias_ih_l0)
    if getattr(lstm, "flat_at", None) != (weight.data_ptr(), bias.data_ptr()):
        lstm.flatten_parameters()
        lstm.flat_at = (weight.data_ptr(), bias.data_ptr())
