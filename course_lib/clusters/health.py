"""`course doctor --ranks N`: measure ranks and the links between them before a run, and name the rank that is slow.

All ranks measure their devices at the same time. On a CPU we count the CPU time of all threads, so a rank that waits
for a core does not look slow. Other work on the machine can only add to a time, so the fastest of several tries counts.
"""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.distributed as dist

from course_lib.launcher.jobs import torchrun
from course_lib.launcher.jobs.slurm import Slurm
from course_lib.launcher.notebook.launch import launch
from course_lib.messages.link import Link, fit
from course_lib.model_parallel.point_to_point import can_send_from, connect
from course_lib.runtime import machine
from course_lib.runtime.words import memory_in_words, time_in_words

SMALL = 8  # bytes: sending a message this small measures the latency
ROUNDS = 3  # over all pairs: a busy moment then disturbs one round, not every try of one pair
TRIES = 5  # for everything else
MAX_MATRIX_RANKS = 16  # a wider matrix does not fit on a screen; the picture has room
SLOWER_DEVICE = 2.0  # times slower than the others' median: healthy ranks that share cores or a GPU differ, too
SLOWER_GPU = 1.3  # ranks with a GPU each hardly differ
SLOWER_LINKS = 3.0  # for a rank's fastest message


@dataclass(frozen=True)
class PairTimes:
    """The fastest seconds of one-way messages between two ranks: a small one, and one of `size` bytes."""

    size: int
    small: float
    large: float

    @property
    def link(self) -> Link:
        """The latency and bandwidth fitted to these times."""
        return fit([(SMALL, self.small), (self.size, max(self.large, self.small))])


@dataclass(frozen=True)
class RankHealth:
    """The measurements of one rank; `pairs` are those in which it is the lower rank."""

    host: str
    device: str
    has_own_gpu: bool
    operations: float  # FLOP/s of matmuls
    copied: float  # bytes per second of a copy, read and written
    pairs: dict[tuple[int, int], PairTimes]
    all_reduces: list[tuple[int, float]]  # bytes and seconds
    over_gpus: bool  # whether messages go from GPU to GPU


@dataclass(frozen=True)
class Health:
    """The measurements of all ranks."""

    ranks: list[RankHealth]

    @cached_property
    def links(self) -> dict[tuple[int, int], PairTimes]:
        """The times of every pair of ranks, lower rank first."""
        return {pair: times for rank in self.ranks for pair, times in rank.pairs.items()}

    def link(self, rank: int, other: int) -> Link:
        """Return the link between two ranks."""
        return self.links[min(rank, other), max(rank, other)].link

    def all_reduces(self) -> list[tuple[int, float, float]]:
        """Return (bytes, seconds measured, seconds predicted) of all-reduces, predicted as a ring over measured links.

        A round of a ring takes as long as its slowest message.
        """
        ranks = len(self.ranks)
        ring = [self.link(rank, (rank + 1) % ranks) for rank in range(ranks)] if ranks > 1 else []
        measured = []
        for row in zip(*(rank.all_reduces for rank in self.ranks), strict=True):
            size, seconds = max(row)
            measured.append((size, seconds, max(link.all_reduce_seconds(size, ranks) for link in ring)))
        return measured


def examine_ranks(ranks: int, on: Slurm | None = None, tries: int = TRIES, rounds: int = ROUNDS) -> Health:
    """Measure `ranks` ranks on this machine or on a cluster."""
    return Health(list(launch(measure_rank, tries, rounds, ranks=ranks, timeout=None, on=on)))


def examine_as_rank(peer_timeout: float | None = None) -> Health | None:
    """Measure as one of torchrun's ranks. Rank 0 returns what all of them measured, the others None."""
    run = torchrun.run_here(measure_rank, peer_timeout=peer_timeout)
    return None if run is None else Health(list(run))


def measure_rank(tries: int = TRIES, rounds: int = ROUNDS) -> RankHealth:
    """Measure this rank; every rank must call it."""
    device = machine.device()
    on_gpu = device.type == "cuda"
    # bfloat16 on a GPU, float32 on a CPU: what a run would use there
    side, products = (8192, 4) if on_gpu else (512, 8)
    matrix = torch.ones(side, side, device=device, dtype=torch.bfloat16 if on_gpu else torch.float32)
    source = torch.ones(512 << 20 if on_gpu else 64 << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    clock = time.monotonic if on_gpu else time.process_time
    operations = 2 * side**3 * products / fastest_seconds(lambda: multiply(matrix, products), tries, clock)
    copied = 2 * len(source) / fastest_seconds(lambda: target.copy_(source), tries, clock)
    place = device if can_send_from(device) else torch.device("cpu")  # NCCL sends from the GPU, gloo from the CPU
    return RankHealth(
        host=socket.gethostname(),
        device=torch.cuda.get_device_name(device) if on_gpu else "CPU",
        has_own_gpu=on_gpu and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= machine.gpus(),
        operations=operations,
        copied=copied,
        pairs=measure_pairs(place, rounds),
        all_reduces=measure_all_reduces(place, tries) if dist.get_world_size() > 1 else [],
        over_gpus=place.type == "cuda",
    )


def fastest_seconds(
    work: Callable[[], object], tries: int, clock: Callable[[], float] = time.monotonic, together: bool = False
) -> float:
    """Return the seconds of the fastest try. With `together`, all ranks begin each try at the same time."""
    times = []
    for _ in range(tries + 1):
        if together:
            wait_for_all()
        started_at = clock()
        work()
        machine.wait_for_gpu()
        times.append(clock() - started_at)
    return max(min(times[1:]), 1e-6)  # the first try warms up


def multiply(matrix: torch.Tensor, products: int) -> None:
    """Run this many matmuls."""
    for _ in range(products):
        torch.mm(matrix, matrix)


def measure_pairs(place: torch.device, rounds: int) -> dict[tuple[int, int], PairTimes]:
    """Send messages back and forth between every two ranks, one pair at a time; all ranks must call it.

    Returns the pairs that this rank timed: those in which it is the lower rank.
    """
    rank, pairs = dist.get_rank(), list(itertools.combinations(range(dist.get_world_size()), 2))
    size = 64 << 20 if place.type == "cuda" else 1 << 20  # its time depends mostly on bandwidth
    small, large = (torch.zeros(numbers, dtype=torch.uint8, device=place) for numbers in (SMALL, size))
    fastest: dict[tuple[int, int], PairTimes] = {}
    connect(pairs)
    for pair in rounds * pairs:
        wait_for_all()
        if rank in pair:
            other, leads = sum(pair) - rank, rank == pair[0]
            round_trip(small, other, leads)  # warm-up: the first message sets up the connection
            best_small, best_large = (
                min(round_trip(m, other, leads) / 2 for _ in range(TRIES)) for m in (small, large)
            )
            before = fastest.get(pair, PairTimes(size, best_small, best_large))
            fastest[pair] = PairTimes(size, min(best_small, before.small), min(best_large, before.large))
    return {pair: times for pair, times in fastest.items() if pair[0] == rank}


def round_trip(message: torch.Tensor, other: int, leads: bool) -> float:
    """Return the seconds until a message has come back; the rank that `leads` sends it first."""
    started_at = time.monotonic()
    for sends in (leads, not leads):
        exchange(dist.isend if sends else dist.irecv, message, other)
    machine.wait_for_gpu()
    return time.monotonic() - started_at


def exchange(operation: Callable[..., dist.Work | None], message: torch.Tensor, other: int) -> None:
    """Start a batch of one, so that NCCL uses the group's communicator; `dist.send` would create one for each pair."""
    (work,) = dist.batch_isend_irecv([dist.P2POp(operation, message, other)])
    work.wait()


def measure_all_reduces(place: torch.device, tries: int) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of all-reduces of three sizes, each the fastest try; all ranks must call it."""
    measured = []
    for size in (4 << 10, 1 << 20, 64 << 20 if place.type == "cuda" else 16 << 20):
        all_reduce = partial(dist.all_reduce, torch.zeros(size // 4, device=place))
        measured.append((size, fastest_seconds(all_reduce, tries, together=True)))
    return measured


def wait_for_all() -> None:
    """Wait for all ranks, with a barrier on the host: one on the GPU would keep it busy."""
    dist.all_reduce(torch.zeros(1))


def slow_ranks(health: Health) -> dict[int, str]:
    """Return a sentence for each slow rank: one of its times is several times as long as the others' median."""
    limit = SLOWER_GPU if all(rank.has_own_gpu for rank in health.ranks) else SLOWER_DEVICE
    hosts, ranks = [rank.host for rank in health.ranks], range(len(health.ranks))
    quantities = [
        ("1 TFLOP of matmuls", limit, {rank: 1e12 / health.ranks[rank].operations for rank in ranks}),
        ("copying 1 GB of memory", limit, {rank: 2e9 / health.ranks[rank].copied for rank in ranks}),
    ]
    for within, reach in ((True, "within its machine"), (False, "to another machine")):
        like = {pair: times for pair, times in health.links.items() if (hosts[pair[0]] == hosts[pair[1]]) == within}
        linked = sorted({rank for pair in like for rank in pair})
        for size in ("small", "large"):
            best = {rank: min(getattr(like[pair], size) for pair in like if rank in pair) for rank in linked}
            quantities.append((f"its fastest {size} message {reach}", SLOWER_LINKS, best))
    sentences: dict[int, str] = {}
    for what, times_longer, seconds in quantities:
        for rank, own in seconds.items():
            others = [seconds[other] for other in seconds if other != rank]
            if others and own > times_longer * (usual := statistics.median(others)):
                where = f"{health.ranks[rank].device} on {hosts[rank]}"
                times = f"{time_in_words(own)}, the others' {time_in_words(usual)} (the median)"
                sentences.setdefault(rank, f"Rank {rank} is slow ({where}): {what} takes {times}.")
    return sentences


def health_text(health: Health) -> str:
    """Return tables of the ranks, their links and the all-reduces, and which rank is slow."""
    ranks = range(len(health.ranks))
    rows = [
        [str(rank), each.host, each.device, f"{each.operations / 1e9:,.0f} GFLOP/s", f"{each.copied / 1e9:,.1f} GB/s"]
        for rank, each in enumerate(health.ranks)
    ]
    parts = [_table(["rank", "host", "device", "matmul", "memory"], rows)]
    if len(ranks) == 1:
        return "\n\n".join([*parts, "There is only one rank, so there is nothing to compare."])
    place = "from GPU to GPU (NCCL)" if health.ranks[0].over_gpus else "from host to host memory (gloo)"
    for head, show in (
        ("latency in microseconds", lambda link: f"{link.latency * 1e6:,.0f}"),
        ("bandwidth in GB/s", lambda link: f"{link.bandwidth / 1e9:,.2f}"),
    ):
        rows = [[str(row), *("-" if row == c else show(health.link(row, c)) for c in ranks)] for row in ranks]
        matrix = _table(["rank", *map(str, ranks)], rows) if len(ranks) <= MAX_MATRIX_RANKS else "  --out draws it"
        parts.append(f"Links, {place}: {head}\n{matrix}")
    rows = [
        [memory_in_words(size), time_in_words(seconds), time_in_words(predicted), f"{seconds / predicted:.1f}"]
        for size, seconds, predicted in health.all_reduces()
    ]
    ring = "predicted: a ring over these links; it ignores the additions and the sharing of cores and memory"
    parts.append(f"{_table(['all-reduce', 'measured', 'predicted', 'ratio'], rows)}\n{ring}")
    return "\n\n".join([*parts, "\n".join(slow_ranks(health).values()) or "No rank stands out."])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with right-aligned columns, each as wide as its widest cell."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    aligned = ([cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in [head, *rows])
    return "\n".join("  " + "  ".join(cells) for cells in aligned)
