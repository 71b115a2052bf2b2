"""What this machine offers (cores, memory, GPUs, ports), and how a launch uses it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.runtime.words import counted

if TYPE_CHECKING:
    import torch

COUNTED_GPUS = "COURSE_LIB_GPUS"  # set for the ranks of a launch
BACKEND = "COURSE_LIB_BACKEND"  # nccl or gloo, to force one of them
LAUNCHED_HERE = "COURSE_LIB_LAUNCHED_HERE"  # by a notebook or a script on one machine, so it is never restarted
SHARES_GPUS = (2, 30)  # the first version of NCCL that lets ranks share a GPU
SHARING_COMMAND = "python -m course_lib.launcher.jobs.shared_gpu"
CONTROL_GROUPS = Path("/sys/fs/cgroup")
MAX_SEED = 2**63 - 1  # torch accepts twice that, which leaves room for seed + rank


def started_by_torchrun() -> bool:
    """Return whether this process is a rank of a job that another program started and may restart."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys() and LAUNCHED_HERE not in os.environ


def restarts() -> int:
    """Return how often torchrun or Slurm has restarted this rank's job after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if started_by_torchrun() else 0


def cores() -> int:
    """Return how many cores this process may use, given its affinity mask and the container's quota, if any."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Docker and Binder limit CPU time, not the affinity mask. The file may be missing, or contain "max".
    with contextlib.suppress(OSError, ValueError):
        limit, period = map(int, (CONTROL_GROUPS / "cpu.max").read_text().split())
        return max(1, min(available, limit // period))
    return available


def memory_bytes() -> int | None:
    """Return the memory this process may use: the machine's, or the container's limit. None if unknown."""
    try:
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, OSError, ValueError):
        return None
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroups v2 and v1
        with contextlib.suppress(OSError, ValueError):  # the file is missing, or contains "max"
            limits.append(int((CONTROL_GROUPS / name).read_text()))
    return min(limits)


def threads_per_rank(ranks: int) -> int:
    """Return the number of compute threads for each of `ranks` ranks that share this machine's cores."""
    return max(1, cores() // ranks)


def gpus() -> int:
    """Return how many GPUs this process may use.

    `torch.cuda.is_available()` starts the driver, which takes 0.2 s per process, one process at a time.
    `device_count()` asks NVML, which doesn't. Ranks do neither: their supervisor counts once and sets a variable.
    """
    if COUNTED_GPUS in os.environ:
        return int(os.environ[COUNTED_GPUS])
    import torch

    return torch.cuda.device_count()


def device() -> torch.device:
    """Return this rank's device: its own GPU, a GPU it shares with other ranks, or the CPU."""
    import torch

    index = gpu_index()
    if index is None:
        return torch.device("cpu")
    if "LOCAL_RANK" in os.environ and not torch.cuda.is_initialized():
        torch.cuda.set_device(index)  # before PyTorch picks one: it assumes a GPU for each rank
    return torch.device("cuda", index)


def wait_for_gpu() -> None:
    """Wait until the GPU has finished all of this process's work. Raises if any of it failed."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def gpu_index() -> int | None:
    """Return the index of this rank's GPU without initializing CUDA, or None if there is no GPU."""
    return int(os.environ.get("LOCAL_RANK", "0")) % gpus() if gpus() else None


def backend(ranks: int) -> str:
    """Return the process group's backend for `ranks` ranks on this machine.

    CUDA tensors go over NCCL if every rank has its own GPU, or if the loaded NCCL lets ranks share one; CPU tensors
    still go over gloo. Otherwise everything goes over gloo. Set COURSE_LIB_BACKEND to `nccl` or `gloo` to override.
    """
    forced = os.environ.get(BACKEND, "")
    if forced not in ("", "nccl", "gloo"):
        raise ValueError(f"{BACKEND}={forced}: choose nccl or gloo, or unset it")
    reason = why_not_nccl(ranks)
    if forced == "nccl" and reason:
        raise ValueError(f"{BACKEND}=nccl: {reason}")
    return "gloo" if reason or forced == "gloo" else "cpu:gloo,cuda:nccl"


def why_not_nccl(ranks: int) -> str:
    """Return why `ranks` ranks on this machine cannot use NCCL and what to do about it, or "" if they can."""
    import torch.distributed as dist

    if not gpus():
        return "there is no GPU on this machine"
    if not dist.is_nccl_available():
        return "this PyTorch was built without NCCL: install a build for your CUDA version"
    if gpus() >= ranks:
        return ""
    shared = f"{counted(ranks, 'rank')} would share {counted(gpus(), 'GPU')}"
    if nccl_version() < SHARES_GPUS:
        loaded, needed = (".".join(map(str, version)) for version in (nccl_version(), SHARES_GPUS))
        return f"{shared}, which NCCL {loaded} refuses and {needed} allows: start this with {SHARING_COMMAND} ..."
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
        return f"{shared}, which NCCL allows if NCCL_MULTI_RANK_GPU_ENABLE=1: start this with {SHARING_COMMAND} ..."
    return ""


def nccl_version() -> tuple[int, ...]:
    """Return the version of NCCL that this process has loaded, for example (2, 28, 9), or (0,) if there is none.

    `torch.cuda.nccl.version()` won't do: it reports the version PyTorch was built with, even if a newer one was
    preloaded.
    """
    import torch.distributed as dist

    if not (gpus() and dist.is_nccl_available()):
        return (0,)
    number = ctypes.c_int()
    try:
        ctypes.CDLL(None).ncclGetVersion(ctypes.byref(number))
    except (AttributeError, OSError):  # not preloaded, so PyTorch's private copy is the one in use
        from torch.cuda.nccl import version

        return tuple(int(part) for part in version()[:3])
    return number.value // 10_000, number.value // 100 % 100, number.value % 100


def free_port() -> int:
    """Return a loopback port that is free right now. It is not reserved."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports, below the range that the OS uses for outgoing connections."""
    dice, ports = random.SystemRandom(), []
    with contextlib.ExitStack() as probes:
        while len(ports) < count:
            probe, port = probes.enter_context(socket.socket()), dice.randrange(10_000, 32_000)
            with contextlib.suppress(OSError):  # taken: try another
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def internet_sockets() -> Iterator[socket.socket]:
    """Yield a copy of every TCP or UDP socket of this process, whatever code opened it. Each is closed after use."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # closed in the meantime
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as copy:
                    if copy.family in (socket.AF_INET, socket.AF_INET6):
                        yield copy


def is_listening(sock: socket.socket) -> bool:
    """Return whether other processes can connect to this socket."""
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
