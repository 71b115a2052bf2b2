"""How fast each rank's device multiplies matrices and copies memory.

All ranks are measured at the same time, but those that share a GPU one after the other. On a CPU it is the processor's
time that counts, of all threads: ranks that wait for a core are not slow.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib import machine
from course_lib.doctor.links import wait_for_all

TRIES = 5


@dataclass(frozen=True)
class DeviceRates:
    """What a rank computes on: operations per second of a matrix product, bytes per second of a copy."""

    host: str
    name: str
    shared_by: int  # ranks on the same GPU
    operations: float
    copied: float

    @property
    def on_gpu(self) -> bool:
        return self.name != CPU

    @property
    def has_own_gpu(self) -> bool:
        return self.on_gpu and self.shared_by == 1


CPU = "CPU"


def measure_device(after_each: Callable[[], None], tries: int = TRIES) -> DeviceRates:
    """Multiply and copy on this rank's device; for all ranks to call."""
    device = machine.device()
    operations = in_turn(lambda: _operations_per_second(device, tries))
    after_each()
    copied = in_turn(lambda: _bytes_per_second(device, tries))
    after_each()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else CPU
    return DeviceRates(socket.gethostname(), name, _ranks_on_this_gpu(), operations, copied)


def in_turn(measure: Callable[[], float]) -> float:
    """What is measured when it is this rank's turn on its GPU; without a GPU, it is everybody's at once."""
    own = int(os.environ["LOCAL_RANK"]) // machine.gpus() if machine.gpus() else 0
    last = torch.tensor(own)
    dist.all_reduce(last, dist.ReduceOp.MAX)
    measured = 0.0
    for turn in range(int(last) + 1):
        wait_for_all()
        if turn == own:
            measured = measure()
    return measured


def _operations_per_second(device: torch.device, tries: int) -> float:
    """Products in bfloat16 on a GPU, in float32 on a CPU: what each is good at."""
    side, products = (8192, 4) if device.type == "cuda" else (512, 8)
    matrix = torch.ones(side, side, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    return 2 * side**3 * products / quickest(lambda: multiply(matrix, products), device, tries)


def multiply(matrix: torch.Tensor, products: int) -> None:
    """So many products."""
    for _ in range(products):
        torch.mm(matrix, matrix)


def _bytes_per_second(device: torch.device, tries: int) -> float:
    """Read once and written once."""
    size = 512 << 20 if device.type == "cuda" else 64 << 20
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / quickest(lambda: target.copy_(source), device, tries)


def quickest(work: Callable[[], object], device: torch.device, tries: int) -> float:
    """Seconds of the quickest try: of the clock for a GPU, of all cores together for a CPU."""
    on_gpu = device.type == "cuda"
    clock, times = time.monotonic if on_gpu else time.process_time, []
    for _ in range(tries + 1):
        began = clock()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(clock() - began)
    return max(min(times[1:]), 1e-6)


def _ranks_on_this_gpu() -> int:
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), machine.gpus()
    index = machine.gpu_index()
    return 1 if index is None else len(range(index, here, gpus))
