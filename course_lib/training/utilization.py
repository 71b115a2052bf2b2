"""Model FLOPs utilization (MFU): what of the devices' peak arithmetic goes into the model's own matrices.

The FLOPs of a token are those of its forward pass, counted by PyTorch, and twice as many on the way back. What is done
for nothing does not count: padding, and what is computed again. A run that is faster therefore has a larger MFU.
"""

from __future__ import annotations

import copy
import os
import re
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib import machine
from course_lib.data import Batch
from course_lib.lstm.model import SequenceModel
from course_lib.strategies.precision import PRECISIONS

FORWARD_AND_BACKWARD = 3  # times the forward pass: the backward pass multiplies twice where that multiplies once
MOST_STEPS = 128  # of the sequence whose FLOPs are counted

# Teraflops per second of dense matrices in half precision (bf16 and fp16), tf32 and float32, by what
# `torch.cuda.get_device_name` says; from NVIDIA's data sheets, which name twice as much for matrices of which two in
# every four numbers are zero.
PEAKS = {
    r"H200 NVL|H100 NVL": (835.5, 417.5, 60.0),
    r"H200|H100.*HBM3|H100 SXM": (989.5, 494.5, 67.0),
    r"H100 PCIe": (756.5, 378.0, 51.0),
    r"A100": (312.0, 156.0, 19.5),
    r"L40S": (362.0, 183.0, 91.6),
    r"L4": (121.0, 60.0, 30.3),
    r"A10": (125.0, 62.5, 31.2),
}


@dataclass(frozen=True)
class Utilization:
    """What a token costs, and what the devices could do, all of them together."""

    flops_per_token: float
    peak: float  # FLOPs per second

    def at(self, tokens_per_second: float) -> float:
        """The MFU of a run at that speed: 1 is all that the devices can do."""
        return tokens_per_second * self.flops_per_token / self.peak


def utilization_of(model: SequenceModel, batch: Batch, precision: str) -> Utilization | None:
    """For a run of this whole model on all ranks; None where a device's peak, or what the model does, is not known."""
    if machine.device().type != "cuda":
        return None
    peak = peak_of(torch.cuda.get_device_name(), precision)
    flops = count_flops(model, batch) if peak else 0.0
    return Utilization(flops, peak * _devices()) if peak and flops else None


def peak_of(name: str, precision: str) -> float | None:
    """FLOPs per second of the device of that name; LSTMs in float32 compute in tf32 where PyTorch lets cuDNN do so."""
    for pattern, (half, tf32, float32) in PEAKS.items():
        if re.search(rf"\b({pattern})\b", name):
            full = tf32 if torch.backends.cudnn.allow_tf32 else float32
            return 1e12 * (half if PRECISIONS[precision] else full)
    return None


def count_flops(model: SequenceModel, batch: Batch) -> float:
    """Of one token, forward and backward. 0 for a model that cannot be run on tensors without numbers."""
    steps = min(batch.steps, MOST_STEPS)
    inputs = batch.inputs[:steps, :1].to("meta")
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            _without_numbers(model)(inputs)
    except Exception:  # somebody's own model may do anything with its inputs
        return 0.0
    return FORWARD_AND_BACKWARD * counter.get_total_flops() / steps


def _without_numbers(model: nn.Module) -> nn.Module:
    """A copy whose weights have shapes, but take no memory."""
    copied: dict[int, torch.Tensor] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        shape = tensor.detach().to("meta")
        copied[id(tensor)] = nn.Parameter(shape, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else shape
    return copy.deepcopy(model, copied)


def _devices() -> int:
    """How many GPUs the ranks have together: as many as there are ranks, or fewer that they share."""
    ranks, ranks_here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    return ranks // ranks_here * min(ranks_here, machine.gpus())
