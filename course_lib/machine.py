"""What this machine has, and what that means for a launch."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

COUNTED_GPUS = "COURSE_LIB_GPUS"  # set for the ranks of a launch


def cores() -> int:
    """Cores this process may use: its affinity mask, and a container's quota where there is one."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cores()
    return max(1, min(available, quota)) if quota else available


def _cgroup_cores() -> int | None:
    """A container's CPU quota in whole cores. Docker and Binder limit time, which no affinity mask shows."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else max(1, int(limit) // int(period))
    except (OSError, ValueError):
        return None


def memory_bytes() -> int | None:
    """Physical memory, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def threads_per_rank(ranks: int) -> int:
    """Compute threads for each of `ranks` ranks that share this machine's cores."""
    return max(1, cores() // ranks)


def gpus() -> int:
    """How many GPUs this process may use.

    `torch.cuda.is_available()` starts the driver, which takes 0.2 s in every process, one process after another. To
    count, PyTorch asks NVML, which does not; and ranks are told by their supervisor, who has asked once for all.
    """
    if COUNTED_GPUS in os.environ:
        return int(os.environ[COUNTED_GPUS])
    import torch

    return torch.cuda.device_count()


def device() -> torch.device:
    """This rank's device: its own GPU, the GPU it shares with other ranks, or the CPU."""
    import torch

    index = gpu_index()
    if index is None:
        return torch.device("cpu")
    if "LOCAL_RANK" in os.environ and not torch.cuda.is_initialized():
        torch.cuda.set_device(
            index
        )  # before PyTorch chooses one: of ranks that share a GPU, it would want more of them
    return torch.device("cuda", index)


def gpu_index() -> int | None:
    """The number of this rank's GPU, without starting it; None where there is none."""
    return int(os.environ.get("LOCAL_RANK", "0")) % gpus() if gpus() else None


def backend(ranks: int) -> str:
    """The process group's backend for `ranks` ranks on this machine.

    NCCL refuses two ranks on one GPU, so ranks that share a GPU talk over gloo.
    With a GPU each, CUDA tensors go over NCCL and CPU tensors still go over gloo.
    """
    import torch.distributed as dist

    has_a_gpu_each = gpus() >= ranks
    return "cpu:gloo,cuda:nccl" if has_a_gpu_each and dist.is_nccl_available() else "gloo"


def loopback_interface() -> str | None:
    """The interface gloo should use when all ranks are on this machine, or None to let gloo choose."""
    if sys.platform.startswith("linux"):
        return "lo"
    return "lo0" if sys.platform == "darwin" else None


def free_port() -> int:
    """A port on the loopback interface that nobody uses now. It is chosen, not opened."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many of them, all different."""
    with contextlib.ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]
