"""`course doctor --ranks N`: measure ranks, links and data before a run, and say who is slow.

launch(measure_rank, Plan(), ranks=4, timeout=None)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch.distributed as dist

from course_lib.doctor.devices import TRIES, DeviceRates, measure_device
from course_lib.doctor.gpus import GpuHealth, examine_gpus
from course_lib.doctor.links import (
    ROUNDS,
    PairTimes,
    all_reduce_sizes,
    measure_all_reduces,
    measure_pairs,
    pairs_of,
    wait_for_all,
    where_messages_lie,
)
from course_lib.doctor.reading import Reading, read_share
from course_lib.launchers import Run, Slurm, launch, torchrun
from course_lib.launchers.process import progress_bar
from course_lib.launchers.process.progress_bar import Step
from course_lib.launchers.tracing.events import clock_skew
from course_lib.planning.network import Link


@dataclass(frozen=True)
class Plan:
    """What to measure: reads of `data` if it is given, and how often each time is taken."""

    data: str | None = None
    tries: int = TRIES
    rounds: int = ROUNDS


@dataclass(frozen=True)
class RankHealth:
    """What one rank has measured: `pairs` in which it has the lower number, `gpus` if it is its machine's first."""

    rank: int
    device: DeviceRates
    clock: float  # seconds that its machine's time of day is ahead of rank 0's
    pairs: list[PairTimes]
    all_reduces: list[tuple[int, float]]
    over_gpus: bool  # messages go from GPU to GPU
    reading: Reading | None = None
    gpus: GpuHealth | None = None


@dataclass(frozen=True)
class Health:
    """What all ranks have measured."""

    ranks: list[RankHealth]
    links: dict[tuple[int, int], PairTimes] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", {pair.ranks: pair for each in self.ranks for pair in each.pairs})

    def link(self, one: int, other: int) -> Link:
        """The link between two ranks."""
        return self.links[min(one, other), max(one, other)].link

    def all_reduces(self) -> list[tuple[int, float, float]]:
        """(bytes, seconds measured, seconds predicted) of an all-reduce, as a ring over the links that were measured.

        A round of a ring takes as long as its slowest message.
        """
        ranks = len(self.ranks)
        ring = [self.link(rank, (rank + 1) % ranks) for rank in range(ranks)] if ranks > 1 else []
        rows = zip(*(each.all_reduces for each in self.ranks), strict=True)
        slowest = [(row[0][0], max(seconds for _, seconds in row)) for row in rows]
        return [(size, took, max(link.all_reduce_seconds(size, ranks) for link in ring)) for size, took in slowest]


def measure_rank(plan: Plan, show: Callable[[Step], None] = progress_bar.send) -> RankHealth:
    """Measure; for every rank to call. Rank 0 calls `show` with how far it is."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    steps = _Steps(_count_of_steps(plan, ranks), show if rank == 0 else None)
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    clock = -clock_skew(PrefixStore("doctor", _get_default_store()))
    steps.what = "matrix products and copies"
    device = measure_device(steps.done, plan.tries)
    wait_for_all()
    steps.what = "links"
    pairs = measure_pairs(steps.done, plan.rounds)
    steps.what = "all-reduce"
    all_reduces = measure_all_reduces(steps.done, plan.tries) if ranks > 1 else []
    steps.what = "reading"
    reading = read_share(plan.data, rank, ranks) if plan.data is not None else None
    first_here = os.environ.get("LOCAL_RANK", "0") == "0"
    gpus = examine_gpus(device.host) if device.on_gpu and first_here else None
    over_gpus = where_messages_lie().type == "cuda"
    return RankHealth(rank, device, clock, pairs, all_reduces, over_gpus, reading, gpus)


def examine_ranks(plan: Plan, ranks: int, on: Slurm | None = None) -> Health:
    """Measure `ranks` ranks of this machine or a cluster."""
    return Health(list(launch(measure_rank, plan, ranks=ranks, timeout=None, on=on)))


def examine_as_rank(plan: Plan, peer_timeout: float | None = None) -> Health | None:
    """Measure as one rank of torchrun's, with the bar drawn by rank 0. The other ranks return None."""
    bar = progress_bar.Bar(sys.__stderr__)
    try:
        run: Run | None = torchrun.run_here(measure_rank, plan, show=bar.show, peer_timeout=peer_timeout)
    finally:
        bar.close()
    return None if run is None else Health(list(run))


def _count_of_steps(plan: Plan, ranks: int) -> int:
    sizes = len(all_reduce_sizes(where_messages_lie())) if ranks > 1 else 0
    return 2 + plan.rounds * len(pairs_of(ranks)) + sizes


class _Steps:
    """Counts what is done, and shows it."""

    def __init__(self, total: int, show: Callable[[Step], None] | None) -> None:
        self._total, self._show, self._done = total, show, 0
        self.what = ""

    def done(self) -> None:
        self._done += 1
        if self._show is not None:
            self._show(Step(self._done, self._total, self.what))
