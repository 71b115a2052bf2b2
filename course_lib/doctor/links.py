"""How fast messages are between every two ranks, and an all-reduce between all of them; measured on the ranks."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib.machine import device
from course_lib.planning.network import Link, fit
from course_lib.strategies.point_to_point import can_send_from, connect

SMALL = 8  # bytes: its time is latency
ROUNDS = 3  # over all pairs, so that a moment at which the machine is busy meets all of them alike
TRIPS = 5  # to and fro, of each size in one round


@dataclass(frozen=True)
class PairTimes:
    """Seconds of messages one way between two ranks: of `size` bytes or of a few, each the quickest and the median.

    What else a machine does can only add to a time: the quickest of several is disturbed least.
    """

    ranks: tuple[int, int]
    size: int
    small: float
    typical_small: float
    large: float
    typical_large: float

    @property
    def link(self) -> Link:
        """The latency and the bandwidth that these times make."""
        return fit([(SMALL, self.small), (self.size, max(self.large, self.small))])


def pairs_of(ranks: int) -> list[tuple[int, int]]:
    """Every two ranks, once."""
    return list(itertools.combinations(range(ranks), 2))


def where_messages_lie() -> torch.device:
    """What is sent: memory of the GPU over NCCL; over gloo, memory of the host."""
    return device() if can_send_from(device()) else torch.device("cpu")


def measure_pairs(after_each: Callable[[], None], rounds: int = ROUNDS) -> list[PairTimes]:
    """Send messages to and fro between every two ranks, one pair after the other; for all ranks to call.

    Returns the pairs that this rank has timed: those in which it has the lower number.
    """
    rank, place = dist.get_rank(), where_messages_lie()
    size = large_size(place)
    small, large = (torch.zeros(numbers, dtype=torch.uint8, device=place) for numbers in (SMALL, size))
    times: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
    connect(pairs_of(dist.get_world_size()))
    for pair in _in_rounds(rounds):
        wait_for_all()
        if rank in pair:
            of_small, of_large = times.setdefault(pair, ([], []))
            other, leads = sum(pair) - rank, rank == pair[0]
            round_trip(small, other, leads)  # the first one sets up what there is to set up
            of_small += [round_trip(small, other, leads) / 2 for _ in range(TRIPS)]
            of_large += [round_trip(large, other, leads) / 2 for _ in range(TRIPS)]
        after_each()
    return [
        PairTimes(pair, size, min(short), statistics.median(short), min(long), statistics.median(long))
        for pair, (short, long) in times.items()
        if pair[0] == rank
    ]


def large_size(place: torch.device) -> int:
    """Bytes of a message whose time is mostly bandwidth."""
    return 64 << 20 if place.type == "cuda" else 1 << 20


def _in_rounds(rounds: int) -> Iterator[tuple[int, int]]:
    for _ in range(rounds):
        yield from pairs_of(dist.get_world_size())


def round_trip(message: torch.Tensor, other: int, leads: bool) -> float:
    """Seconds until a message is back; the one of the two ranks that `leads` sends it first."""
    began = time.monotonic()
    for sends in (leads, not leads):
        if sends:
            send(message, other)
        else:
            _exchange(dist.irecv, message, other)
    _wait_for_gpu(message)
    return time.monotonic() - began


def send(message: torch.Tensor, other: int) -> None:
    """One message."""
    _exchange(dist.isend, message, other)


def _exchange(operation: Callable[..., dist.Work | None], message: torch.Tensor, other: int) -> None:
    """A batch of one: NCCL then uses the group's communicator, where `dist.send` would make one for each pair."""
    (work,) = dist.batch_isend_irecv([dist.P2POp(operation, message, other)])
    work.wait()


def all_reduce_sizes(place: torch.device) -> tuple[int, ...]:
    """Bytes of the tensors that are summed."""
    return (4 << 10, 1 << 20, 64 << 20) if place.type == "cuda" else (4 << 10, 1 << 20, 16 << 20)


def measure_all_reduces(after_each: Callable[[], None], tries: int = 5) -> list[tuple[int, float]]:
    """(bytes, seconds) of an all-reduce of some sizes, the quickest of several; for all ranks to call."""
    measured = []
    for size in all_reduce_sizes(where_messages_lie()):
        message, times = torch.zeros(size // 4, device=where_messages_lie()), []
        for _ in range(tries + 1):
            wait_for_all()
            began = time.monotonic()
            dist.all_reduce(message)
            _wait_for_gpu(message)
            times.append(time.monotonic() - began)
        measured.append((size, min(times[1:])))
        after_each()
    return measured


def wait_for_all() -> None:
    """A barrier on the host: one on a GPU would keep it busy."""
    dist.all_reduce(torch.zeros(1))


def _wait_for_gpu(message: torch.Tensor) -> None:
    if message.is_cuda:
        torch.cuda.synchronize()
