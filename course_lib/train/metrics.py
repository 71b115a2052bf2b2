"""Model FLOPs utilization (MFU): the fraction of the devices' peak that goes into the model's matrix multiplications.

The FLOPs of a token are those of its forward pass, counted by PyTorch, plus twice as many for the backward pass.
Padding and recomputation are wasted work and do not count, so a faster run has a larger MFU.
"""

from __future__ import annotations

import copy
import os
import re

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib.core.batch import Batch
from course_lib.core.model import SequenceModel
from course_lib.core.strategy import PRECISIONS
from course_lib.runtime import machine

FORWARD_AND_BACKWARD = 3  # the backward pass has two matrix multiplications for each forward one
MOST_STEPS = 128  # in the sequence whose FLOPs are counted

# Peak teraflops per second for dense matrices in half precision (bf16 and fp16), tf32 and float32. A key matches the
# name from `torch.cuda.get_device_name`. NVIDIA's data sheets list twice as much, for 2:4 sparse matrices.
PEAKS = {
    r"H200 NVL|H100 NVL": (835.5, 417.5, 60.0),
    r"H200|H100.*HBM3|H100 SXM": (989.5, 494.5, 67.0),
    r"H100 PCIe": (756.5, 378.0, 51.0),
    r"A100": (312.0, 156.0, 19.5),
    r"L40S": (362.0, 183.0, 91.6),
    r"L4": (121.0, 60.0, 30.3),
    r"A10": (125.0, 62.5, 31.2),
}


def utilization_of(model: SequenceModel, batch: Batch, precision: str) -> float | None:
    """Return the MFU of all ranks' GPUs at one token per second; None if their peak or the FLOPs are unknown."""
    peak = peak_of(torch.cuda.get_device_name(), precision)
    flops = count_flops(model, batch) if peak else 0.0
    ranks, ranks_here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    devices = ranks // ranks_here * min(ranks_here, machine.gpus())  # one per rank, or fewer if they share
    return flops / (peak * devices) if peak and flops else None


def peak_of(name: str, precision: str) -> float | None:
    """Return a device's peak FLOPs per second. LSTMs in float32 compute in tf32 if PyTorch lets cuDNN do so."""
    for pattern, (half, tf32, float32) in PEAKS.items():
        if re.search(rf"\b({pattern})\b", name):
            full = tf32 if torch.backends.cudnn.allow_tf32 else float32
            return 1e12 * (half if PRECISIONS[precision] else full)
    return None


def count_flops(model: SequenceModel, batch: Batch) -> float:
    """Return the FLOPs of one token, forward and backward; 0 for a model that cannot run on meta tensors."""
    steps = min(batch.steps, MOST_STEPS)
    shapes: dict[int, Tensor] = {}  # instead of the weights: deepcopy takes what it finds here, so nothing is copied
    for tensor in (*model.parameters(), *model.buffers()):
        shape = tensor.detach().to("meta")
        shapes[id(tensor)] = nn.Parameter(shape, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else shape
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            copy.deepcopy(model, shapes)(batch.inputs[:steps, :1].to("meta"))
    except Exception:  # a user's model may do anything with its inputs
        return 0.0
    return FORWARD_AND_BACKWARD * counter.get_total_flops() / steps
