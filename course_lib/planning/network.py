"""Two numbers describe a link: its latency, which every message pays, and its bandwidth.

A message takes about `latency + bytes / bandwidth`, so you can predict the cost of every collective before you run it.
`fit_line` fits such a line, a fixed cost and a cost per unit, to any measurements. A `Network` has several GPUs in each
machine: it knows which links the rows and columns of a mesh use, and what an all-reduce costs.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from course_lib import trace
from course_lib.launchers import private_doors

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Line:
    """`fixed + each * x`. The fixed part dominates left of the `knee`, the growing part right of it."""

    fixed: float
    each: float

    def at(self, x: float) -> float:
        return self.fixed + self.each * x

    @property
    def knee(self) -> float:
        """The x at which both parts are equal."""
        return self.fixed / self.each


def fit_line(measured: Sequence[tuple[float, float]]) -> Line:
    """Return the line through (x, y) points with the smallest *relative* errors: y may span orders of magnitude."""
    if len({x for x, _ in measured}) < 2:
        raise ValueError("a line needs two points: measure at least two sizes")
    weighted = [(1 / y**2, x, y) for x, y in measured]
    total = sum(weight for weight, _, _ in weighted)
    mean_x = sum(weight * x for weight, x, _ in weighted) / total
    mean_y = sum(weight * y for weight, _, y in weighted) / total
    slope = sum(weight * (x - mean_x) * (y - mean_y) for weight, x, y in weighted)
    slope /= sum(weight * (x - mean_x) ** 2 for weight, x, _ in weighted)
    slope = max(slope, 1e-15)  # noise can make the larger size look faster
    return Line(max(mean_y - slope * mean_x, 1e-9), slope)


SIZES = tuple(4**power for power in range(1, 13))  # 4 bytes to 16 MiB


@dataclass(frozen=True)
class Link:
    """A link between two ranks: `latency` in seconds, `bandwidth` in bytes per second, and the measurements."""

    latency: float
    bandwidth: float
    measured: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    def seconds(self, size: float) -> float:
        """Return how long a message of `size` bytes takes."""
        return self.latency + size / self.bandwidth

    def all_reduce_seconds(self, size: float, ranks: float) -> float:
        """Return how long a ring all-reduce takes: 2 (ranks - 1) rounds, each with a piece of size / ranks bytes."""
        return 2 * (ranks - 1) * self.seconds(size / ranks)

    def gather_seconds(self, size: float, ranks: int) -> float:
        """Return how long an all-gather takes with a ring or a tree, whichever is faster: a tree has fewer rounds."""
        ring = (ranks - 1) * self.seconds(size / ranks)
        return min(ring, math.ceil(math.log2(ranks)) * self.latency + size / self.bandwidth) if ranks > 1 else 0.0

    def __str__(self) -> str:
        return f"latency {self.latency * 1e6:.0f} microseconds, bandwidth {self.bandwidth / 1e9:.2f} GB/s"


def measure_link(sizes: Sequence[int] = SIZES, repeats: int = 15) -> Link:
    """Send messages back and forth between two ranks, and fit latency and bandwidth to their times."""
    from course_lib.launchers import launch

    return fit(launch(ping_pong, sizes, repeats, ranks=2)[0])


def ping_pong(sizes: Sequence[int], repeats: int) -> list[tuple[int, float]]:
    """Run on two ranks; return (bytes, seconds one way) for every size: the lower quartile of `repeats` round trips.

    Other work on the machine can only make a time longer. The sizes take turns, so that it affects all of them.
    """
    import torch
    import torch.distributed as dist

    peer, is_first = 1 - dist.get_rank(), dist.get_rank() == 0
    messages = [torch.zeros(size, dtype=torch.uint8) for size in sizes]  # on the CPU: gloo only sends host memory
    times: list[list[float]] = [[] for _ in sizes]
    for _ in range(repeats + 1):
        for message, seconds in zip(messages, times, strict=True):
            dist.barrier()
            started_at = time.monotonic()
            dist.send(message, peer) if is_first else dist.recv(message, peer)
            dist.recv(message, peer) if is_first else dist.send(message, peer)
            seconds.append((time.monotonic() - started_at) / 2)
    return [(size, sorted(seconds[1:])[len(seconds) // 4]) for size, seconds in zip(sizes, times, strict=True)]


def fit(measured: Sequence[tuple[float, float]]) -> Link:
    """Return the link whose latency and bandwidth minimize the *relative* errors of its predictions."""
    line = fit_line(measured)
    return Link(line.fixed, 1 / line.each, tuple(measured))


@dataclass(frozen=True)
class Network:
    """GPUs in nodes, each with its own link inside the node and between nodes. Ranks fill one node after another."""

    inside: Link
    between: Link
    per_node: int

    @classmethod
    def flat(cls, link: Link) -> Network:
        """Return a network with the same link between all ranks, as on a single machine."""
        return cls(link, link, 1)

    def orders(self, replicas: int, stages: int) -> tuple[str, ...]:
        """Return the rank orders that differ here: neighbors are a replica's stages, or a stage's replicas."""
        is_same = min(replicas, stages) == 1 or replicas * stages <= self.per_node or self.inside == self.between
        return ("stages",) if is_same else ("stages", "replicas")

    def between_stages(self, replicas: int, stages: int, inside: str) -> Link:
        """Return the slowest link between two consecutive stages."""
        if replicas * stages <= self.per_node:
            return self.inside
        in_one_node = inside == "stages" and self.per_node % stages == 0
        return self.inside if in_one_node else self.between

    def replicas_per_node(self, replicas: int, stages: int, inside: str) -> int:
        """Return how many of the ranks that hold the same stage share a node."""
        if replicas * stages <= self.per_node:
            return replicas
        return min(replicas, self.per_node if inside == "replicas" else max(1, self.per_node // stages))

    def all_reduce_seconds(self, size: float, ranks: int, per_node: int) -> float:
        """Return how long an all-reduce takes: a reduce-scatter followed by an all-gather."""
        return 2 * self.gather_seconds(size, ranks, per_node)

    def gather_seconds(self, size: float, ranks: int, per_node: int) -> float:
        """Return how long an all-gather of `size` bytes, or a reduce-scatter, takes with `per_node` ranks in a node."""
        # It runs inside the nodes, until each rank has its piece, then for each piece between the nodes.
        inside = self.inside.gather_seconds(size, min(ranks, per_node))
        return inside + self.between.gather_seconds(size / per_node, math.ceil(ranks / per_node))


@dataclass(frozen=True)
class Sent:
    """The handle of an all-reduce in flight, like the one that `dist.all_reduce(tensor, async_op=True)` returns."""

    future: torch.futures.Future[Any]  # its stub takes no exception for a list of tensors

    def wait(self) -> bool:
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return self.future.done()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        return self.future


@contextmanager
def paced_network(link: Link) -> Iterator[None]:
    """Make collectives on this rank take as long as a ring over `link`, and record them as `communication`.

    The collectives are `dist.all_reduce`, and the all-gather and reduce-scatter of one tensor, each half an all-reduce.
    They run one after another, in the order in which they start, while the caller continues. This intercepts only calls
    from Python: for DistributedDataParallel's buckets, register a communication hook that calls `dist.all_reduce`.
    """
    import torch.distributed as dist

    gather, scatter = private_doors.single_tensor_collectives()
    real = {name: getattr(dist, name) for name in ("all_reduce", gather, scatter)}
    with ThreadPoolExecutor(max_workers=1) as line:
        for name, function in real.items():
            setattr(dist, name, _paced(function, link, 1.0 if name == "all_reduce" else 0.5, line))
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(dist, name, function)


def _paced(real: Callable[..., Any], link: Link, share: float, line: ThreadPoolExecutor) -> Callable[..., Any]:
    """Return a collective that takes this share of an all-reduce's time over `link`, in its turn on `line`."""
    import torch
    import torch.distributed as dist

    call = inspect.signature(real)

    def paced(*arguments: Any, **options: Any) -> Any:
        bound = call.bind(*arguments, **options)
        is_async = bound.arguments.pop("async_op", False)
        tensors = [value for value in bound.arguments.values() if isinstance(value, torch.Tensor)]
        size, ranks = max(tensor.nbytes for tensor in tensors), dist.get_world_size(bound.arguments.get("group"))
        seconds = share * link.all_reduce_seconds(size, ranks)
        sent, label = Sent(torch.futures.Future()), trace.recorder.label

        def send() -> None:
            try:
                with trace.span("communication", at_least=seconds, label=label):
                    real(*bound.args, **bound.kwargs)
                sent.future.set_result(tensors[:1])
            except Exception as error:
                sent.future.set_exception(error)  # pyright: ignore[reportArgumentType]

        line.submit(send)
        return sent if is_async else sent.wait() and None

    return paced
