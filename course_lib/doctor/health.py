"""`course doctor --ranks N`: measure ranks, links and data before a run, and report which rank is slow.

    launch(measure_rank, Plan(), ranks=4, timeout=None)

Each rank is compared with the median of the others, with thresholds high enough to tolerate a busy machine.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from course_lib.doctor import measuring
from course_lib.doctor.measuring import DeviceRates, PairTimes, Reading
from course_lib.launchers import Run, Slurm, launch, private_doors, torchrun
from course_lib.launchers.process import progress_bar
from course_lib.launchers.process.progress_bar import Step
from course_lib.launchers.tracing.recording import clock_skew
from course_lib.planning.network import Link


@dataclass(frozen=True)
class Plan:
    """What to measure: reads of `data`, if given, and how many times to repeat each measurement."""

    data: str | None = None
    tries: int = measuring.TRIES
    rounds: int = measuring.ROUNDS


@dataclass(frozen=True)
class RankHealth:
    """The measurements of one rank; `pairs` are those in which it is the lower rank."""

    rank: int
    device: DeviceRates
    clock: float  # seconds by which its machine's time of day is ahead of rank 0's
    pairs: list[PairTimes]
    all_reduces: list[tuple[int, float]]
    over_gpus: bool  # whether messages go from GPU to GPU
    reading: Reading | None = None


@dataclass(frozen=True)
class Health:
    """The measurements of all ranks."""

    ranks: list[RankHealth]

    @cached_property
    def links(self) -> dict[tuple[int, int], PairTimes]:
        """The times of every pair of ranks, lower rank first."""
        return {pair.ranks: pair for rank in self.ranks for pair in rank.pairs}

    def link(self, rank: int, other: int) -> Link:
        """Return the link between two ranks."""
        return self.links[min(rank, other), max(rank, other)].link

    def all_reduces(self) -> list[tuple[int, float, float]]:
        """Return (bytes, seconds measured, seconds predicted) of all-reduces, predicted as a ring over measured links.

        A round of a ring takes as long as its slowest message.
        """
        ranks = len(self.ranks)
        ring = [self.link(rank, (rank + 1) % ranks) for rank in range(ranks)] if ranks > 1 else []
        rows = zip(*(rank.all_reduces for rank in self.ranks), strict=True)
        slowest = [(row[0][0], max(seconds for _, seconds in row)) for row in rows]
        return [
            (size, seconds, max(link.all_reduce_seconds(size, ranks) for link in ring)) for size, seconds in slowest
        ]


def measure_rank(plan: Plan, show: Callable[[Step], None] = progress_bar.send) -> RankHealth:
    """Measure this rank; every rank must call it. Rank 0 reports progress through `show`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    steps = _Progress(_count_of_steps(plan, ranks), show if rank == 0 else None)
    clock = -clock_skew(PrefixStore("doctor", private_doors.default_store()))
    steps.note = "matmuls and copies"
    device = measuring.measure_device(steps.finish_one, plan.tries)
    measuring.wait_for_all()
    steps.note = "links"
    pairs = measuring.measure_pairs(steps.finish_one, plan.rounds)
    steps.note = "all-reduce"
    all_reduces = measuring.measure_all_reduces(steps.finish_one, plan.tries) if ranks > 1 else []
    steps.note = "reading"
    reading = measuring.read_share(plan.data, rank, ranks) if plan.data is not None else None
    over_gpus = measuring.message_device().type == "cuda"
    return RankHealth(rank, device, clock, pairs, all_reduces, over_gpus, reading)


def examine_ranks(plan: Plan, ranks: int, on: Slurm | None = None) -> Health:
    """Measure `ranks` ranks on this machine or on a cluster."""
    return Health(list(launch(measure_rank, plan, ranks=ranks, timeout=None, on=on)))


def examine_as_rank(plan: Plan, peer_timeout: float | None = None) -> Health | None:
    """Measure as one of torchrun's ranks. Rank 0 draws the progress bar; the other ranks return None."""
    bar = progress_bar.Bar(sys.__stderr__)
    try:
        run: Run | None = torchrun.run_here(measure_rank, plan, show=bar.show, peer_timeout=peer_timeout)
    finally:
        bar.close()
    return None if run is None else Health(list(run))


def _count_of_steps(plan: Plan, ranks: int) -> int:
    sizes = len(measuring.all_reduce_sizes(measuring.message_device())) if ranks > 1 else 0
    return 2 + plan.rounds * len(measuring.pairs_of(ranks)) + sizes


class _Progress:
    """Counts and shows the finished steps."""

    def __init__(self, total: int, show: Callable[[Step], None] | None) -> None:
        self._total, self._show, self._finished = total, show, 0
        self.note = ""

    def finish_one(self) -> None:
        self._finished += 1
        if self._show is not None:
            self._show(Step(self._finished, self._total, self.note))


SLOWER_DEVICE = 2.0  # times slower: healthy ranks that share cores or a GPU differ, too
SLOWER_GPU = 1.3  # ranks with a GPU each hardly differ
SLOWER_LINKS = 3.0  # a rank's fastest message, compared with typical ones of the others
SLOWER_PAIR = 5.0  # the same for a single link: with many links, some are slow by chance
SLOWER_READS = 5.0
MIN_LINKS = 3  # how many other links we need before we call one slow


@dataclass(frozen=True)
class Complaint:
    """What is slow, in a sentence; `ranks` is one rank, or the two ends of a link."""

    ranks: tuple[int, ...]
    sentence: str


def complaints(health: Health) -> list[Complaint]:
    """Return everything that stands out, worst kind first: ranks that cannot read, slow devices, slow links."""
    slow_ends = list(_slow_ends(health))
    named = {complaint.ranks[0] for complaint in slow_ends}
    single_links = [complaint for complaint in _single_links(health) if not named & set(complaint.ranks)]
    return [*_reads(health), *_devices(health), *slow_ends, *single_links]


def summary(health: Health) -> str:
    """Return the complaints as text, or a sentence that says there are none."""
    if sentences := [complaint.sentence for complaint in complaints(health)]:
        return "\n".join(sentences)
    return "No rank stands out." if len(health.ranks) > 1 else "There is only one rank, so there is nothing to compare."


def _devices(health: Health) -> Iterator[Complaint]:
    all_own_gpus = all(rank.device.has_own_gpu for rank in health.ranks)
    limit = SLOWER_GPU if all_own_gpus else SLOWER_DEVICE
    for quantity, unit, rates in (
        ("matmuls run at", "GFLOP/s", [rank.device.operations / 1e9 for rank in health.ranks]),
        ("memory copies run at", "GB/s", [rank.device.copied / 1e9 for rank in health.ranks]),
    ):
        for rank, rate in enumerate(rates):
            others = _median_without(rates, rank)
            if others is not None and rate * limit < others:
                device = health.ranks[rank].device
                yield Complaint(
                    (rank,),
                    f"Rank {rank} is slow ({device.name} on {device.host}): its {quantity} {rate:,.3g} {unit}, "
                    f"the others' at {others:,.3g} (the median), {others / rate:.1f} times as fast.",
                )


def _reads(health: Health) -> Iterator[Complaint]:
    readings = [rank.reading for rank in health.ranks if rank.reading is not None]
    if len(readings) < len(health.ranks):
        return
    for rank, reading in enumerate(readings):
        if reading.trouble:
            host = health.ranks[rank].device.host
            yield Complaint((rank,), f"Rank {rank} cannot read the data on {host}: {reading.trouble}.")
    if len(readings) < 3 or any(reading.size < measuring.WORTH_TIMING for reading in readings):
        return  # with only two, one may have found its part in the page cache
    rates = [reading.size / reading.first / 1e6 for reading in readings]
    for rank, rate in enumerate(rates):
        others = _median_without(rates, rank)
        if others is not None and rate * SLOWER_READS < others:
            yield Complaint(
                (rank,), f"Rank {rank} reads slowly: {rate:,.0f} MB/s, the others {others:,.0f} (the median)."
            )


def _slow_ends(health: Health) -> Iterator[Complaint]:
    """Yield a complaint for each rank whose best link is slow, within its machine or to other machines."""
    for rank in range(len(health.ranks)):
        for within, reach in ((True, "within its machine"), (False, "to other machines")):
            pairs = _pairs(health, within)
            pairs_of_rank, others = [p for p in pairs if rank in p.ranks], [p for p in pairs if rank not in p.ranks]
            if pairs_of_rank and others and (how := _slower(pairs_of_rank, others, SLOWER_LINKS)):
                best = "its only link" if len(pairs_of_rank) == 1 else f"the best of its {len(pairs_of_rank)} links"
                yield Complaint((rank,), f"Rank {rank} has slow links: {best} {reach} {how}.")
                break


def _single_links(health: Health) -> Iterator[Complaint]:
    for within in (True, False):
        pairs = _pairs(health, within)
        for pair in pairs:
            others = [other for other in pairs if other is not pair]
            if len(others) >= MIN_LINKS and (how := _slower([pair], others, SLOWER_PAIR)):
                yield Complaint(pair.ranks, f"The link between ranks {pair.ranks[0]} and {pair.ranks[1]} {how}.")


def _slower(pairs: Sequence[PairTimes], others: Sequence[PairTimes], limit: float) -> str:
    """Return how much slower the fastest messages of `pairs` are than typical ones of `others`, or "" if not slower."""
    small, typical_small = min(p.small for p in pairs), statistics.median(p.typical_small for p in others)
    large, typical_large = min(p.large for p in pairs), statistics.median(p.typical_large for p in others)
    if small > limit * typical_small:
        return f"takes {small * 1e6:,.0f} µs for a small message, others {typical_small * 1e6:,.0f} µs (the median)"
    if large > limit * typical_large:
        size = f"{pairs[0].size / 2**20:g} MiB"
        return f"takes {large * 1e3:,.3g} ms for {size}, others {typical_large * 1e3:,.3g} ms (the median)"
    return ""


def _pairs(health: Health, within: bool) -> list[PairTimes]:
    """Return the pairs within machines, or those between machines."""
    hosts = [rank.device.host for rank in health.ranks]
    return [pair for pair in health.links.values() if (hosts[pair.ranks[0]] == hosts[pair.ranks[1]]) == within]


def _median_without(values: Sequence[float], left_out: int) -> float | None:
    others = [value for place, value in enumerate(values) if place != left_out]
    return statistics.median(others) if others else None


MAX_MATRIX_RANKS = 16  # ranks: a wider matrix does not fit on a screen; use the picture
LARGE_SKEW = 0.1  # seconds


def health_text(health: Health) -> str:
    """Return all tables, with the summary at the end."""
    parts = [_ranks(health), _data(health), _links(health), _all_reduces(health), summary(health)]
    return "\n\n".join(part for part in parts if part)


def _ranks(health: Health) -> str:
    head = ["rank", "host", "device", "matmul", "memory", "clock"]
    rows = [
        [
            str(rank.rank),
            rank.device.host,
            rank.device.name + (f" (shared by {rank.device.shared_by})" if rank.device.shared_by > 1 else ""),
            f"{rank.device.operations / 1e9:,.0f} GFLOP/s",
            f"{rank.device.copied / 1e9:,.1f} GB/s",
            f"{rank.clock * 1e3:+,.1f} ms" if rank.clock else "0",
        ]
        for rank in health.ranks
    ]
    on_cpu, on_gpu = (
        "float32, per core; waiting for a core does not count",
        "bfloat16; ranks that share a GPU take turns",
    )
    how = on_gpu if health.ranks[0].device.on_gpu else on_cpu
    lines = [*_table(head, rows), f"matmul: in {how}; memory: bytes read and written by a copy"]
    if largest := max((rank.clock for rank in health.ranks), key=abs, default=0.0):
        advice = ": synchronize the machines' clocks (chrony, NTP), or their logs will not line up"
        lines.append(
            f"clock: ahead of rank 0's machine; the largest offset is {largest * 1e3:+,.1f} ms"
            + (advice if abs(largest) > LARGE_SKEW else "")
        )
    return "\n".join(lines)


def _data(health: Health) -> str:
    readings = [(rank.rank, rank.reading) for rank in health.ranks if rank.reading and not rank.reading.trouble]
    if not readings:
        return ""
    rows = [
        [
            str(rank),
            f"{reading.size / 1e6:,.1f} MB",
            *(f"{reading.size / seconds / 1e6:,.0f} MB/s" for seconds in (reading.first, reading.again)),
        ]
        for rank, reading in readings
    ]
    cache = "The kernel could not be asked to forget the files: even the first read may come from memory"
    if all(reading.forgotten for _, reading in readings):
        cache = "The kernel was asked to forget the files before the first read"
    more = "; the second read comes from memory (the page cache), like a later epoch if the data fits there"
    return "\n".join([*_table(["rank", "its part", "read", "read again"], rows), cache + more])


def _links(health: Health) -> str:
    ranks = len(health.ranks)
    if ranks < 2:
        return ""
    place = "from GPU to GPU (NCCL)" if health.ranks[0].over_gpus else "from host to host memory (gloo)"
    if ranks > MAX_MATRIX_RANKS:
        return "\n".join([f"Links, {place}", *_extremes(health)])
    latency = _matrix(health, lambda link: f"{link.latency * 1e6:,.0f}")
    bandwidth = _matrix(health, lambda link: f"{link.bandwidth / 1e9:,.2f}")
    return f"Links, {place}: latency in microseconds\n{latency}\n\nLinks, {place}: bandwidth in GB/s\n{bandwidth}"


def _matrix(health: Health, value: Callable[[Link], str]) -> str:
    numbers = range(len(health.ranks))
    rows = [[str(row), *("-" if row == c else value(health.link(row, c)) for c in numbers)] for row in numbers]
    return "\n".join(_table(["rank", *map(str, numbers)], rows))


def _extremes(health: Health) -> list[str]:
    """Return a table with the best, the median and the worst link."""
    rows = []
    for name, key in (("latency", lambda pair: pair.link.latency), ("bandwidth", lambda pair: -pair.link.bandwidth)):
        ordered = sorted(health.links.values(), key=key)
        for place, pair in (("best", ordered[0]), ("median", ordered[len(ordered) // 2]), ("worst", ordered[-1])):
            rows.append([f"{place} {name}", f"ranks {pair.ranks[0]} and {pair.ranks[1]}", str(pair.link)])
    return _table(["", "between", "link"], rows)


def _all_reduces(health: Health) -> str:
    all_reduces = health.all_reduces()
    if not all_reduces:
        return ""
    rows = [
        [
            f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB",
            f"{measured_seconds * 1e3:,.2f} ms",
            f"{predicted * 1e3:,.2f} ms",
            f"{measured_seconds / predicted:.1f}",
        ]
        for size, measured_seconds, predicted in all_reduces
    ]
    head = ["all-reduce", "measured", "predicted", "ratio"]
    more = "predicted: a ring over these links; it ignores the additions and the sharing of cores and memory"
    return "\n".join([*_table(head, rows), more])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with right-aligned columns, each as wide as its widest cell."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    aligned = ([cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in [head, *rows])
    return ["  " + "  ".join(cells) for cells in aligned]
