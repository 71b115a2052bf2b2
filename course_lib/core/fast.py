"""What makes the LSTM fast on a GPU: wide layers run in one call of cuDNN, and their weights stay in one buffer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from course_lib.runtime import private_doors

# One call was faster on an H200 from these hidden sizes up (tests/benchmarks). In half precision kernels are short, so
# what matters is how fast the host can launch them, and one call per layer launches fewer.
WIDE, WIDE_IN_HALF = 512, 2048


class Stack:
    """LSTM layers of the same width as a single `nn.LSTM` that *shares the layers' parameters*.

    On a GPU, cuDNN runs a stack of layers as a wavefront: while one layer is at step t, the next is at step t-1. This
    is faster than layer after layer if the layers are wide, but not if they are narrow. One call is also one node of
    the autograd graph: all its gradients become available at the same time, so a strategy that sends gradients during
    the backward pass runs the layers separately.
    """

    def __init__(self, layers: Sequence[nn.LSTM], weights: Sequence[Tensor]) -> None:
        self.weights = weights
        hidden = layers[0].hidden_size
        self.lstm = nn.LSTM(hidden, hidden, len(layers), device="meta")
        for number, layer in enumerate(layers):
            for name, parameter in layer.named_parameters():
                setattr(self.lstm, name.replace("_l0", f"_l{number}"), parameter)

    def __call__(self, inputs: Tensor, states: Sequence[Any]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the last layer's outputs, and every layer's new state. A state of None starts at zero."""
        initial = None
        if any(state is not None for state in states):
            zeros = inputs.new_zeros(1, inputs.shape[1], self.lstm.hidden_size)
            pairs = [state if state is not None else (zeros, zeros) for state in states]
            initial = tuple(torch.cat(layers) for layers in zip(*pairs, strict=True))
        outputs, (h, c) = run_lstm(self.lstm, inputs, initial)
        return outputs, list(zip(h.split(1), c.split(1), strict=True))


def stack_of(
    built: dict[int, Stack], run: Sequence[tuple[int, Any]], inputs: Tensor, one_call: bool | None
) -> Stack | None:
    """Return the stack of these (place, block) pairs, from those `built`, or None if they run one by one.

    `one_call` decides; None leaves it to the width. Blocks with a forward hook run one by one.
    """
    if one_call is None:
        in_half = inputs.dtype != torch.float32 or torch.is_autocast_enabled("cuda")
        one_call = inputs.is_cuda and run[0][1].width >= (WIDE_IN_HALF if in_half else WIDE)
    if not one_call or any(private_doors.has_forward_hooks(block) for _, block in run):
        return None
    layers, first = [block.lstm for _, block in run], run[0][0]
    weights = [parameter for layer in layers for parameter in private_doors.own_parameters(layer)]
    if first not in built or any(a is not b for a, b in zip(weights, built[first].weights, strict=True)):
        built[first] = Stack(layers, weights)  # also if somebody has replaced a weight
    return built[first]


def run_lstm(lstm: nn.LSTM, inputs: Tensor, state: Any) -> Any:
    """Call the layers, with weights and inputs as they are computed fastest.

    cuDNN copies weights on a GPU at each call unless they lie in one contiguous buffer. A layer may run sometimes alone
    and sometimes in a stack. The two need different orders, so each run restores one.

    Under autocast, inputs on a CPU are cast here: oneDNN assumes that every CPU has half-precision arithmetic, and
    fails otherwise. On a GPU, PyTorch casts the inputs of cuDNN's LSTM to float16, no matter which dtype autocast was
    given (pytorch/pytorch#42385), so casting here would only add a round trip between layers.
    """
    if inputs.is_cuda:
        weight, bias = cast(Tensor, lstm.weight_ih_l0), cast(Tensor, lstm.bias_ih_l0)
        if getattr(lstm, "flat_at", None) != (weight.data_ptr(), bias.data_ptr()):
            lstm.flatten_parameters()
            lstm.flat_at = (weight.data_ptr(), bias.data_ptr())
    elif inputs.is_cpu and torch.is_autocast_enabled("cpu"):
        half = torch.get_autocast_dtype("cpu")
        inputs, state = inputs.to(half), state and tuple(part.to(half) for part in state)
    return lstm(inputs, state)


def keep_weights_where_they_are(block: nn.Module) -> None:
    """Turn off `flatten_parameters` in the LSTMs of a block.

    On a GPU, `nn.LSTM` moves its weights into one contiguous buffer whenever they are new tensors, as after every
    all-gather. The next all-gather then fills the *old* memory, while the layer computes with the moved copy: from the
    second update on it would train on stale weights, without an error. The price is that cuDNN copies the weights into
    one buffer at each call. We hide the warning about this, which recommends `flatten_parameters`.
    """
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk", UserWarning)
    for module in block.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters = _do_nothing  # pyright: ignore[reportAttributeAccessIssue]


def _do_nothing() -> None:
    """Do nothing: a module-level function, so that a block can be pickled."""
