"""How a run is doing, update by update: written to its log, and shown to the user.

Model FLOPs utilization (MFU) is the fraction of the devices' peak arithmetic that goes into the model's matrix
multiplications. The FLOPs of a token are those of its forward pass, counted by PyTorch, plus twice as many for the
backward pass. Padding and recomputation are wasted work and do not count, so a faster run has a larger MFU.
"""

from __future__ import annotations

import copy
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib import machine
from course_lib.data import Batch
from course_lib.launchers.process.progress_bar import Progress
from course_lib.lstm.model import SequenceModel
from course_lib.strategies import Strategy
from course_lib.strategies.base import PRECISIONS
from course_lib.strategies.shards import local_part
from course_lib.training.log import Log, Record
from course_lib.training.loop import READ_EVERY, Update

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


@dataclass(frozen=True)
class Utilization:
    """The cost of a token, and the peak of all devices together."""

    flops_per_token: float
    peak: float  # FLOPs per second

    def at(self, tokens_per_second: float) -> float:
        """Return the MFU of a run at this speed: 1 is the devices' peak."""
        return tokens_per_second * self.flops_per_token / self.peak


def utilization_of(model: SequenceModel, batch: Batch, precision: str) -> Utilization | None:
    """Return the whole model's `Utilization` on all ranks; None if the devices' peak or the FLOPs are unknown."""
    if machine.device().type != "cuda":
        return None
    peak = peak_of(torch.cuda.get_device_name(), precision)
    flops = count_flops(model, batch) if peak else 0.0
    ranks, ranks_here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    devices = ranks // ranks_here * min(ranks_here, machine.gpus())  # one per rank, or fewer if they share
    return Utilization(flops, peak * devices) if peak and flops else None


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


CHECK_EVERY = 20  # updates: all ranks check for finite losses after the same one, so that they stop together
NOT_YET_CHECKED = 10  # updates that a GPU may still be running: the next check covers them


class NotFinite(ArithmeticError):
    """A run that cannot continue: its loss or its weights are infinite or NaN."""


@dataclass(frozen=True)
class PendingLoss:
    """A loss being copied from the device. Waiting for it at once would leave the GPU idle for a while."""

    number: Tensor
    copied: torch.cuda.Event | None
    updated_at: float
    tokens: int  # of its batch

    @classmethod
    def start(cls, update: Update) -> PendingLoss:
        """Start the copy, and return the pending loss."""
        number, copied = update.loss.detach().to("cpu", non_blocking=True), None
        if update.loss.is_cuda:
            copied = torch.cuda.Event()
            copied.record()
        return cls(number, copied, time.monotonic(), int(update.batch.lengths.sum()))

    def value(self) -> float:
        """Wait for the loss if needed, and return it."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.number.item()


class MetricsLogger:
    """Records every update; on rank 0 it also has a `log` and a `show`. It holds only a few losses at a time."""

    def __init__(
        self,
        updates: int,
        total: int,
        loss: float,
        *,
        log: Log | None,
        show: Callable[[Progress], None] | None,
        utilization: Utilization | None = None,
    ) -> None:
        self.updates, self.total, self.loss = updates, total, loss
        self.log, self.show, self.utilization = log, show, utilization
        self.tokens_per_second = 0.0
        self._seconds_before = log.seconds if log else 0.0
        self._unread: list[PendingLoss] = []
        self._unchecked: list[PendingLoss] = []
        self._started_at = self._read_at = time.monotonic()

    def add(self, update: Update) -> None:
        """Record one update. Its loss is read a moment later, with a few others, or by `flush`."""
        self.updates += 1
        loss = PendingLoss.start(update)
        self._unread.append(loss)
        self._unchecked.append(loss)
        if self.updates == self.total:
            self.flush()
            self.check_losses()
        if loss.updated_at - self._read_at >= READ_EVERY:
            ready = takewhile(lambda pending: pending.copied is None or pending.copied.query(), self._unread)
            self._read(len(list(ready)))
        if self.updates % CHECK_EVERY == 0:
            self.check_losses(but_the_last=NOT_YET_CHECKED if loss.copied else 0)

    @property
    def mfu(self) -> float | None:
        """The MFU of the last updates that were read, if the devices' peak is known."""
        return round(self.utilization.at(self.tokens_per_second), 4) if self.utilization else None

    def check_losses(self, but_the_last: int = 0) -> None:
        """Raise NotFinite, on all ranks, if a loss since the last check is not finite."""
        count = max(0, len(self._unchecked) - but_the_last)
        values = [pending.value() for pending in self._unchecked[:count]]
        before, self._unchecked = self.updates - len(self._unchecked), self._unchecked[count:]
        first_bad = next((place for place, value in enumerate(values) if not math.isfinite(value)), None)
        if first_bad is not None:
            self.flush()
            update = before + first_bad + 1
            raise NotFinite(f"the loss of update {update} is {values[first_bad]}: give a smaller --learning-rate")

    def flush(self) -> None:
        """Read the pending losses, log them, and show the progress."""
        self._read(len(self._unread))

    def _read(self, count: int) -> None:
        """Read the oldest `count` pending losses."""
        if not count:
            return
        first_update = self.updates - len(self._unread) + 1
        read, self._unread = self._unread[:count], self._unread[count:]
        losses, now = [pending.value() for pending in read], time.monotonic()
        self.tokens_per_second = sum(pending.tokens for pending in read) / max(1e-9, now - self._read_at)
        self.loss, self._read_at = losses[-1], now
        speed, before = round(self.tokens_per_second, 1), self._seconds_before - self._started_at
        records = (
            Record(first_update + place, loss, speed, round(before + pending.updated_at, 4), self.mfu)
            for place, (loss, pending) in enumerate(zip(losses, read, strict=True))
        )
        if self.log:
            self.log.append(takewhile(lambda record: math.isfinite(record.loss), records))  # JSON has no NaN
        if self.show:
            self.show(Progress(first_update + count - 1, self.total, self.loss, self.tokens_per_second, self.mfu))

    def skip_time(self) -> None:
        """Restart the clock: the time since the last update was not spent on training."""
        self._read_at = time.monotonic()


def check_weights(strategy: Strategy, update: int) -> None:
    """Raise NotFinite, on all ranks, if any rank has a weight that is not finite, which a finite loss can hide."""
    parts = [local_part(shard.tensor) for shard in strategy.shards().values()]
    finite = torch.stack([torch.ones((), dtype=torch.bool), *(part.isfinite().all().cpu() for part in parts)]).all()
    everywhere = finite.to(torch.uint8).to(strategy.device)
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
    if not everywhere:
        raise NotFinite(f"the weights after update {update} are not finite: give a smaller --learning-rate")
