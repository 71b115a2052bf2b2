"""Which mesh to train on: the time and memory of a step, predicted for every way to cut model and batch.

What goes in is measured or counted: what each block costs, how large the gradients and the messages are, and lesson
00's two numbers for the network. What comes out is a list of plans, the fastest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from course_lib.data import Batch
from course_lib.lstm.memory import BatchSize, Memory, predict_block_memory
from course_lib.lstm.model import SequenceModel
from course_lib.planning.costs import ActionCosts
from course_lib.planning.network import Link
from course_lib.planning.placement import BlockCost, CannotPlace, Placement, balanced, step_cost
from course_lib.planning.schedules import SCHEDULES, Schedule
from course_lib.planning.simulation import Stopwatch

FORWARD_SHARE = 1 / 3  # of a training step's computation: the backward pass computes two products for each of its own


@dataclass(frozen=True)
class Work:
    """What one update of the whole batch asks for."""

    costs: tuple[BlockCost, ...]  # per block, on one device: seconds forward and backward, bytes
    memory: tuple[Memory, ...]  # per block
    edge: int  # bytes of activations that cross from one block to the next
    sequences: int
    steps: int

    @classmethod
    def of(cls, model: SequenceModel, batch: Batch | BatchSize, costs: Sequence[BlockCost]) -> Work:
        """The work of training `model` on `batch`, if its blocks cost that much."""
        memory = tuple(predict_block_memory(place, block, batch) for place, block in model.numbered())
        widest = max(block.width for _, block in list(model.numbered())[:-1])
        size = next(model.parameters()).element_size()
        edge = batch.steps * batch.sequences * widest * size
        return cls(tuple(costs), memory, edge, batch.sequences, batch.steps)


@dataclass(frozen=True)
class Network:
    """GPUs in nodes: a fast link inside a node, a slower one between nodes. Ranks fill one node after another.

    Where all-reduces were measured too, `collective` is the link that explains them.
    """

    inside: Link
    between: Link
    per_node: int
    collective: Link | None = None

    @classmethod
    def flat(cls, link: Link, collective: Link | None = None) -> Network:
        """One link for all, as on a single machine."""
        return cls(link, link, 1, collective)

    def link_for(self, ranks: int) -> Link:
        """The slowest link that so many neighbouring ranks use."""
        return self.inside if ranks <= self.per_node else self.between

    def all_reduce_seconds(self, size: int, replicas: int, stages: int) -> float:
        """Of the gradients of a stage, over all replicas."""
        return (self.collective or self.link_for(replicas * stages)).all_reduce_seconds(size, replicas)


@dataclass(frozen=True)
class Plan:
    """A mesh and a schedule, and what a step is predicted to take on the slowest rank, and to hold on the fullest."""

    replicas: int
    schedule: Schedule
    placement: Placement
    costs: ActionCosts  # of one action, without the overhead of starting it
    pipeline_seconds: float
    gradient_seconds: float  # the all-reduce over the replicas
    bytes: int

    @property
    def stages(self) -> int:
        return len(self.schedule.stages)

    @property
    def ranks(self) -> int:
        return self.replicas * self.stages

    @property
    def seconds(self) -> float:
        """Of one update. The all-reduce is counted in full: what hides behind the last backward pass is a bonus."""
        return self.pipeline_seconds + self.gradient_seconds

    def price(self, updates: int, per_hour: float) -> float:
        """What so many updates cost, if each rank's GPU costs `per_hour`, also while it waits."""
        return self.ranks * per_hour * updates * self.seconds / 3600

    def __str__(self) -> str:
        pieces = f"{self.schedule.micro_batches} micro-batches, {self.schedule.chunks} chunks"
        return (
            f"{self.replicas} x {self.stages}, {self.schedule.name}, {pieces}: "
            f"{self.seconds * 1000:.1f} ms, {self.bytes / 2**20:,.1f} MiB per rank"
        )


def plans(
    work: Work,
    ranks: int,
    network: Network,
    *,
    schedules: Sequence[str] = ("1f1b", "wavefront"),
    micro_batches: Sequence[int] = (1, 2, 4, 8, 16),
    chunks: Sequence[int] = (1, 2, 4, 8),
    overhead: float = 0.0,
    memory: int | None = None,
) -> list[Plan]:
    """Every plan for so many ranks that fits into `memory` bytes on each, the fastest first.

    `overhead` is what starting one action costs, in seconds, however small it is: without it, ever smaller pieces would
    look ever better.
    """
    made = []
    for stages in (number for number in range(1, min(ranks, len(work.costs)) + 1) if ranks % number == 0):
        replicas, placement = ranks // stages, balanced(work.costs, stages)
        for name, pieces, cuts in _worth_a_try(stages, schedules, micro_batches, chunks):
            if replicas * pieces <= work.sequences and cuts <= work.steps:
                made.append(_plan(work, replicas, placement, _prepared(name, stages, pieces, cuts), network, overhead))
    fitting = [plan for plan in made if memory is None or plan.bytes <= memory]
    if not fitting:
        least = min((plan.bytes for plan in made), default=0)
        raise CannotPlace(
            f"no mesh of {ranks} ranks fits into {memory or 0:,} bytes on each: the smallest needs {least:,} bytes"
        )
    return sorted(fitting, key=lambda plan: (plan.seconds, plan.bytes))


def _worth_a_try(
    stages: int, schedules: Sequence[str], micro_batches: Sequence[int], chunks: Sequence[int]
) -> Iterator[tuple[str, int, int]]:
    """(schedule, micro-batches, chunks). Only a wavefront gains by chunks, and one stage by no schedule."""
    for name in schedules if stages > 1 else schedules[:1]:
        for pieces in micro_batches:
            yield from ((name, pieces, cuts) for cuts in (chunks if name == "wavefront" and stages > 1 else [1]))


Prepared = tuple[Schedule, Stopwatch]


@lru_cache(maxsize=256)  # whoever compares networks asks for the same schedules again and again
def _prepared(name: str, stages: int, micro_batches: int, chunks: int) -> Prepared:
    schedule = SCHEDULES[name](stages, micro_batches, chunks)
    return schedule, Stopwatch(schedule)


def _plan(
    work: Work, replicas: int, placement: Placement, prepared: Prepared, network: Network, overhead: float
) -> Plan:
    schedule, stopwatch = prepared
    stages, pieces = len(schedule.stages), schedule.micro_batches * schedule.chunks * replicas
    seconds = [cost.seconds / pieces for cost in step_cost(placement, work.costs).stages]
    costs = ActionCosts(
        forward=tuple(FORWARD_SHARE * spent for spent in seconds),
        backward=tuple((1 - FORWARD_SHARE) * spent for spent in seconds),
        link=network.link_for(stages).seconds(work.edge / pieces) if stages > 1 else 0.0,
    )
    own = [[work.memory[place] for place in placement.blocks_of(stage)] for stage in range(stages)]
    gradients = max(sum(block.gradients for block in blocks) for blocks in own)
    held = [peak / pieces for peak in schedule.peak]
    return Plan(
        replicas,
        schedule,
        placement,
        costs,
        max(end for _, end in stopwatch.times(costs.with_overhead(overhead))),
        network.all_reduce_seconds(gradients, replicas, stages),
        round(max(_bytes(blocks, share) for blocks, share in zip(own, held, strict=True))),
    )


def _bytes(blocks: Sequence[Memory], held: float) -> float:
    """What these blocks need, if activations of so large a share of the batch are held at once."""
    return sum(block.parameters + block.gradients + block.optimizer + held * block.activations for block in blocks)
