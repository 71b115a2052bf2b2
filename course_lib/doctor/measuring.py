"""Measurements on the ranks: their devices, the links between all pairs of them, and how fast they read.

All ranks measure their devices at the same time, except that ranks on one GPU take turns. On a CPU we count the CPU
time of all threads, so a rank that waits for a core does not look slow. A rank reads its part of the data from disk,
then again from the page cache.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from course_lib import machine
from course_lib.machine import device
from course_lib.planning.network import Link, fit
from course_lib.strategies.point_to_point import can_send_from, connect

SMALL = 8  # bytes: sending a message this small measures the latency
ROUNDS = 3  # over all pairs: a busy moment then disturbs one round, not every try of one pair
TRIES = 5  # for everything else; the fastest counts
TRIPS = 5  # round trips of each size in one round


@dataclass(frozen=True)
class PairTimes:
    """The fastest and median seconds of one-way messages between two ranks: small ones, and ones of `size` bytes.

    Other work on the machine can only add to a time, so the fastest of several is the least disturbed.
    """

    ranks: tuple[int, int]
    size: int
    small: float
    typical_small: float
    large: float
    typical_large: float

    @property
    def link(self) -> Link:
        """The latency and bandwidth fitted to these times."""
        return fit([(SMALL, self.small), (self.size, max(self.large, self.small))])


def pairs_of(ranks: int) -> list[tuple[int, int]]:
    """Return every pair of ranks once."""
    return list(itertools.combinations(range(ranks), 2))


def message_device() -> torch.device:
    """Return the device of the messages: the GPU with NCCL, the CPU with gloo."""
    return device() if can_send_from(device()) else torch.device("cpu")


def measure_pairs(after_each: Callable[[], None], rounds: int = ROUNDS) -> list[PairTimes]:
    """Send messages back and forth between every two ranks, one pair at a time; all ranks must call it.

    Returns the pairs that this rank timed: those in which it is the lower rank.
    """
    rank, place = dist.get_rank(), message_device()
    size = large_size(place)
    small, large = (torch.zeros(numbers, dtype=torch.uint8, device=place) for numbers in (SMALL, size))
    times: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
    connect(pairs_of(dist.get_world_size()))
    for pair in rounds * pairs_of(dist.get_world_size()):
        wait_for_all()
        if rank in pair:
            small_times, large_times = times.setdefault(pair, ([], []))
            other, leads = sum(pair) - rank, rank == pair[0]
            round_trip(small, other, leads)  # warm-up: the first message sets up the connection
            small_times += [round_trip(small, other, leads) / 2 for _ in range(TRIPS)]
            large_times += [round_trip(large, other, leads) / 2 for _ in range(TRIPS)]
        after_each()
    return [
        PairTimes(pair, size, min(smalls), median(smalls), min(larges), median(larges))
        for pair, (smalls, larges) in times.items()
        if pair[0] == rank
    ]


def large_size(place: torch.device) -> int:
    """Return the size in bytes of a message whose time depends mostly on bandwidth."""
    return 64 << 20 if place.type == "cuda" else 1 << 20


def round_trip(message: torch.Tensor, other: int, leads: bool) -> float:
    """Return the seconds until a message has come back; the rank that `leads` sends it first."""
    started_at = time.monotonic()
    for sends in (leads, not leads):
        if sends:
            send(message, other)
        else:
            _exchange(dist.irecv, message, other)
    _wait_for_gpu(message)
    return time.monotonic() - started_at


def send(message: torch.Tensor, other: int) -> None:
    """Send one message."""
    _exchange(dist.isend, message, other)


def _exchange(operation: Callable[..., dist.Work | None], message: torch.Tensor, other: int) -> None:
    """Start a batch of one, so that NCCL uses the group's communicator; `dist.send` would create one for each pair."""
    (work,) = dist.batch_isend_irecv([dist.P2POp(operation, message, other)])
    work.wait()


def all_reduce_sizes(place: torch.device) -> tuple[int, ...]:
    """Return the sizes of the all-reduces in bytes."""
    return (4 << 10, 1 << 20, 64 << 20) if place.type == "cuda" else (4 << 10, 1 << 20, 16 << 20)


def measure_all_reduces(after_each: Callable[[], None], tries: int = TRIES) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of all-reduces of several sizes, each the fastest try; all ranks must call it."""
    measured = []
    for size in all_reduce_sizes(message_device()):
        message, times = torch.zeros(size // 4, device=message_device()), []
        for _ in range(tries + 1):
            wait_for_all()
            started_at = time.monotonic()
            dist.all_reduce(message)
            _wait_for_gpu(message)
            times.append(time.monotonic() - started_at)
        measured.append((size, min(times[1:])))
        after_each()
    return measured


def wait_for_all() -> None:
    """Wait for all ranks, with a barrier on the host: one on the GPU would keep it busy."""
    dist.all_reduce(torch.zeros(1))


def _wait_for_gpu(message: torch.Tensor) -> None:
    if message.is_cuda:
        torch.cuda.synchronize()


@dataclass(frozen=True)
class DeviceRates:
    """A rank's device and its speed: FLOP/s of a matmul, bytes per second of a copy."""

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
    """Time matmuls and copies on this rank's device; all ranks must call it."""
    device = machine.device()
    operations = in_turn(lambda: _operations_per_second(device, tries))
    after_each()
    copied = in_turn(lambda: _bytes_per_second(device, tries))
    after_each()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else CPU
    return DeviceRates(socket.gethostname(), name, _ranks_on_this_gpu(), operations, copied)


def in_turn(measure: Callable[[], float]) -> float:
    """Call `measure` when it is this rank's turn on its GPU and return the result. On CPUs, all measure at once."""
    own_turn = int(os.environ["LOCAL_RANK"]) // machine.gpus() if machine.gpus() else 0
    last = torch.tensor(own_turn)
    dist.all_reduce(last, dist.ReduceOp.MAX)
    measured = 0.0
    for turn in range(int(last) + 1):
        wait_for_all()
        if turn == own_turn:
            measured = measure()
    return measured


def _operations_per_second(device: torch.device, tries: int) -> float:
    """Return the FLOP/s of matmuls in the dtype that suits the device: bfloat16 on a GPU, float32 on a CPU."""
    side, products = (8192, 4) if device.type == "cuda" else (512, 8)
    matrix = torch.ones(side, side, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    return 2 * side**3 * products / fastest_seconds(lambda: multiply(matrix, products), device, tries)


def multiply(matrix: torch.Tensor, products: int) -> None:
    """Run this many matmuls."""
    for _ in range(products):
        torch.mm(matrix, matrix)


def _bytes_per_second(device: torch.device, tries: int) -> float:
    """Return the bytes per second of a copy, which reads and writes every byte once."""
    size = 512 << 20 if device.type == "cuda" else 64 << 20
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / fastest_seconds(lambda: target.copy_(source), device, tries)


def fastest_seconds(work: Callable[[], object], device: torch.device, tries: int) -> float:
    """Return the seconds of the fastest try: wall-clock time for a GPU, CPU time of all threads for a CPU."""
    on_gpu = device.type == "cuda"
    clock, times = time.monotonic if on_gpu else time.process_time, []
    for _ in range(tries + 1):
        started_at = clock()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(clock() - started_at)
    return max(min(times[1:]), 1e-6)


def _ranks_on_this_gpu() -> int:
    here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), machine.gpus()
    index = machine.gpu_index()
    return 1 if index is None else len(range(index, here, gpus))


MAX_BYTES = 128 << 20  # per rank
MAX_FILES = 10_000
BLOCK = 4 << 20
WORTH_TIMING = 16 << 20  # bytes: with fewer, opening the file takes most of the time


@dataclass(frozen=True)
class Reading:
    """How many bytes a rank read, and the seconds of the first and second read; or why it could not read."""

    size: int = 0
    first: float = 0.0
    again: float = 0.0
    forgotten: bool = False  # the kernel was asked to drop the files from the page cache
    trouble: str = ""


Stretch = tuple[Path, int, int]  # a file, the first byte, how many bytes


def read_share(path: str, rank: int, ranks: int) -> Reading:
    """Read this rank's part of a file, or of a folder's files, twice; at most `MAX_BYTES` each time."""
    try:
        stretches = list(_share(_files(Path(path)), rank, ranks))
        size = sum(length for _, _, length in stretches)
        if not size:
            return Reading(trouble=f"{path} has no data for rank {rank} to read")
        forgotten = list(map(_forget, stretches))
        return Reading(size, _seconds_to_read(stretches), _seconds_to_read(stretches), all(forgotten))
    except OSError as error:
        return Reading(trouble=f"{error.filename or path}: {error.strerror}")


def _files(path: Path) -> list[tuple[Path, int]]:
    """Return the file, or the folder's files in order, with their sizes."""
    if path.is_file():
        return [(path, path.stat().st_size)]
    if not path.is_dir():
        raise FileNotFoundError(2, "there is no such file or folder", str(path))
    paths = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        paths += [Path(folder, name) for name in sorted(names)]
        if len(paths) >= MAX_FILES:
            break
    return [(file, file.stat().st_size) for file in paths[:MAX_FILES] if file.is_file()]


def _share(files: list[tuple[Path, int]], rank: int, ranks: int) -> Iterator[Stretch]:
    """Yield this rank's part of all bytes, one of `ranks` equal parts, up to the limit."""
    total = sum(size for _, size in files)
    begin = total * rank // ranks
    end = min(total * (rank + 1) // ranks, begin + MAX_BYTES)
    at = 0
    for file, size in files:
        low, high = max(begin, at), min(end, at + size)
        if low < high:
            yield file, low - at, high - low
        at += size


def _forget(stretch: Stretch) -> bool:
    """Ask the kernel to drop this stretch from the page cache. It may refuse, and not every system has this call."""
    if not hasattr(os, "posix_fadvise"):
        return False
    file, offset, length = stretch
    with open(file, "rb", buffering=0) as opened:
        try:
            os.posix_fadvise(opened.fileno(), offset, length, os.POSIX_FADV_DONTNEED)
        except OSError:
            return False
    return True


def _seconds_to_read(stretches: list[Stretch]) -> float:
    started_at = time.monotonic()
    buffer = memoryview(bytearray(BLOCK))
    for file, offset, length in stretches:
        with open(file, "rb", buffering=0) as opened:
            opened.seek(offset)
            while length > 0 and (count := opened.readinto(buffer[: min(BLOCK, length)])):
                length -= count
    return max(time.monotonic() - started_at, 1e-9)
