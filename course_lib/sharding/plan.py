"""What a plan is, and what it costs: the time of an update under it, and the memory that it needs.

One rule decides how much communication computation hides. A device computes one thing at a time; in parallel, its
network sends one message at a time, once its data is ready. Computation waits only for what it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import accumulate, starmap
from typing import Any

from course_lib.core.memory import EMBEDDING, LSTM
from course_lib.data_parallel.network import sent_by
from course_lib.model_parallel.placement import BlockCost, CannotPlace, Placement, balanced, smallest
from course_lib.model_parallel.work import Work
from course_lib.one_device.block_times import HALF, BlockSeconds
from course_lib.pipeline.named_schedules import make_schedule
from course_lib.pipeline.schedule import Schedule
from course_lib.pipeline.simulation import ActionCosts, Stopwatch
from course_lib.runtime.words import counted
from course_lib.sharding.network import Network

ZERO_1, FSDP = "ZeRO-1", "FSDP"

# Where the time of an update goes. `Plan.parts` leaves out the parts that take no time.
PARTS = (
    "computing", "recomputing", "starting actions", "bubble", "messages",
    "gathering and summing", "summing gradients", "updating weights",
)  # fmt: skip


@dataclass(frozen=True)
class Pieces:
    """A schedule's name, stages, micro-batches and chunks, with or without recomputation."""

    name: str
    stages: int
    micro_batches: int
    chunks: int = 1
    recompute: bool = False

    @property
    def prepared(self) -> Prepared:
        """The schedule, prepared to be timed repeatedly."""
        return _prepared(self)

    def __str__(self) -> str:
        cut = counted(self.micro_batches, "micro-batch", "micro-batches")
        cut += f" x {self.chunks} chunks" if self.chunks > 1 else ""
        return f"{self.name}, " * (self.stages > 1) + cut + ", recomputed" * self.recompute


class Prepared:
    """A schedule, its stopwatch, and everything about it that does not depend on costs."""

    def __init__(self, pieces: Pieces) -> None:
        sizes = pieces.stages, pieces.micro_batches, pieces.chunks
        self.schedule = make_schedule(pieces.name, *sizes, recompute=pieces.recompute)
        self.stopwatch = Stopwatch(self.schedule)
        self.held = [share.total for share in self.schedule.peak_share]  # per stage, as a share of the replica's batch
        self.inputs_held = [0.0 for _ in self.schedule.stages]  # the share of its inputs, for recomputation
        if pieces.recompute:
            for stage, row in enumerate(self.schedule.stages):
                held = accumulate((action.kind == "F") - (action.kind == "B") for action in row)
                self.inputs_held[stage] = max(held) / self.schedule.pieces
        # Per stage, the step that makes each part's gradients final, in order: (position, number of the step).
        last: dict[int, int] = {}
        for number, (stage, action) in enumerate(self.stopwatch.order):
            if action.kind in "BW":
                last[self.schedule.stage_map.position(stage, action.virtual)] = number
        self.finals: list[list[tuple[int, int]]] = [[] for _ in self.schedule.stages]
        for position, number in sorted(last.items(), key=lambda item: item[1]):
            self.finals[self.stopwatch.order[number][0]].append((position, number))

    def busy(self, costs: ActionCosts, kinds: str = "FBWR") -> list[float]:
        """Return how long each stage spends on actions of these kinds."""
        spent = [0.0] * len(self.schedule.stages)
        often = Counter(cost for _, cost, _ in self.stopwatch.steps)
        for cost, (stage, action) in enumerate(self.stopwatch.examples):
            if action.kind in kinds:
                spent[stage] += often[cost] * costs.of(action, stage, self.schedule)
        return spent

    def blocks_of_stages(self, placement: Placement) -> list[list[int]]:
        """Return the blocks of each stage, over all its virtual stages."""
        by_stage: list[list[int]] = [[] for _ in self.schedule.stages]
        for position in range(placement.stages):
            by_stage[self.schedule.stage_map.stage_at(position)[0]] += placement.blocks_of(position)
        return by_stage


_prepared = lru_cache(maxsize=512)(Prepared)  # comparing networks needs the same schedules again and again


@dataclass(frozen=True)
class Plan:
    """A mesh of replicas x shards x stages, and the predicted time of a step on the slowest rank.

    `costs` are the costs of one action, without the `overhead` of starting it. All-reduces and gathers, over replicas
    or shards, count only if computation does not hide them.
    """

    replicas: int
    pieces: Pieces
    placement: Placement  # maps blocks to positions: stages, or virtual stages
    costs: ActionCosts
    overhead: float
    pipeline_seconds: float  # from the first action to the last
    exposed_seconds: float  # all-reduces and gathers that the pipeline does not hide
    update_seconds: float  # the optimizer step
    bytes: int  # on the fullest rank
    inside: str = "stages"  # which ranks are neighbors: a replica's stages, or a stage's replicas
    shards: int = 1
    sharding: str = ""  # what the shards divide: with ZeRO-1 the optimizer state, with FSDP everything
    gather_seconds: float = 0.0  # the part of the exposed seconds that gathers weights

    @property
    def stages(self) -> int:
        return self.pieces.stages

    @property
    def ranks(self) -> int:
        return self.replicas * self.stages * self.shards

    @property
    def schedule(self) -> Schedule:
        return self.pieces.prepared.schedule

    @property
    def seconds(self) -> float:
        """The predicted seconds of one update."""
        return self.pipeline_seconds + self.exposed_seconds + self.update_seconds

    @property
    def mesh(self) -> str:
        """The mesh as text: `8 x 2` for 8 pipelines of 2 stages, or `2 x 8 sharded`."""
        if self.sharding == FSDP:
            return f"{self.replicas} x {self.shards} sharded"
        return f"{self.replicas * self.shards} x {self.stages}"

    @property
    def name(self) -> str:
        """The mesh, and the number of ranks that divide the optimizer: `8 x 2 ZeRO-1 over 4`."""
        return f"{self.mesh} {ZERO_1} over {self.shards}" if self.sharding == ZERO_1 else self.mesh

    @property
    def neighbors(self) -> str:
        """Which ranks are neighbors, `stages inside` or `replicas inside`; empty if the mesh has only one order."""
        return f"{self.inside} inside" if min(self.ranks // self.stages, self.stages) > 1 else ""

    @property
    def name_and_order(self) -> str:
        """The name, and which ranks are neighbors: `8 x 2 (replicas inside)`."""
        return f"{self.name} ({self.neighbors})" if self.neighbors else self.name

    @cached_property
    def parts(self) -> dict[str, float]:
        """Where the seconds of a step go. The parts add up to `seconds`."""
        prepared, costs = self.pieces.prepared, self.costs.with_overhead(self.overhead)
        busy = prepared.busy(costs)
        busiest = max(range(self.stages), key=busy.__getitem__)
        recomputing = prepared.busy(self.costs, "R")[busiest]
        starting = len(self.schedule.stages[busiest]) * self.overhead
        without_links = max(end for _, end in prepared.stopwatch.times(replace(costs, link=0.0)))
        spent = {
            "computing": busy[busiest] - recomputing - starting,
            "recomputing": recomputing,
            "starting actions": starting,
            "bubble": without_links - busy[busiest],
            "messages": self.pipeline_seconds - without_links,
            "gathering and summing": self.gather_seconds,
            "summing gradients": self.exposed_seconds - self.gather_seconds,
            "updating weights": self.update_seconds,
        }
        return {part: seconds for part, seconds in spent.items() if seconds > 1e-12}

    def price(self, updates: int, per_hour: float) -> float:
        """Return the price of `updates` updates if each rank's GPU costs `per_hour`, whether busy or idle."""
        return self.ranks * per_hour * updates * self.seconds / 3600

    @property
    def strategy(self) -> tuple[str, dict[str, Any]]:
        """The name and options of the strategy that runs this plan, as `course train` takes them."""
        if self.sharding == FSDP:
            return "fsdp", {"replicas": self.replicas, "micro_batches": self.pieces.micro_batches}
        options = {"replicas": self.replicas, **({"shards": self.shards} if self.sharding else {})}
        options |= {"inside": self.inside, "schedule": self.pieces.name, "micro_batches": self.pieces.micro_batches}
        options |= {"chunks": self.pieces.chunks, "recompute": self.pieces.recompute, "placement": self.placement}
        return "hybrid", options

    def __str__(self) -> str:
        size = f"{self.bytes / 2**30:,.1f} GiB" if self.bytes >= 2**30 else f"{self.bytes / 2**20:,.1f} MiB"
        return f"{self.name_and_order}, {self.pieces}: {self.seconds * 1000:.1f} ms, {size} per rank"


def placed(work: Work, pipelines: int, pieces: Pieces, memory: int | None, shards: int) -> Placement:
    """Return the fastest placement that fits into `memory`, or the smallest; with virtual stages, the fastest."""
    prepared, blocks = pieces.prepared, work.block_seconds(pipelines * pieces.micro_batches, pieces.chunks)
    positions, is_virtual = prepared.schedule.stage_map.positions, prepared.schedule.virtual > 1

    def size(stage: int, places: Sequence[int]) -> float:
        return stage_bytes(work, pipelines, prepared, stage, places, shards)

    costs = [BlockCost(time.forward + time.backward, round(size(0, [place]))) for place, time in enumerate(blocks)]
    fastest = balanced(costs, positions)
    if memory is None or is_virtual or max(starmap(size, enumerate(prepared.blocks_of_stages(fastest)))) <= memory:
        return fastest
    try:
        return balanced(costs, positions, memory, size)
    except CannotPlace:
        return smallest(len(blocks), positions, size)


def stage_bytes(
    work: Work, pipelines: int, prepared: Prepared, stage: int, places: Sequence[int], shards: int = 1
) -> float:
    """Return the bytes these blocks need on this stage: their states, and the activations that the schedule holds."""
    copies = sum(map(work.gathered, places)) if work.precision == HALF else 0  # autocast keeps a copy of each weight
    activations = prepared.held[stage] * sum(work.memory[place].activations for place in places)
    if min(places) > 0:  # the batch itself is not counted on any stage
        activations += prepared.inputs_held[stage] * work.edges[min(places) - 1]
    return work.states(places, shards) + copies + activations / pipelines


def costs_of(placement: Placement, blocks: Sequence[BlockSeconds], link: float) -> ActionCosts:
    """Return the costs of one action at each position, summed over its blocks."""
    positions = [placement.blocks_of(position) for position in range(placement.stages)]
    parts = [sum((blocks[place] for place in rest), blocks[head]).parts for head, *rest in positions]
    forward, backward, inputs, weights = zip(*parts, strict=True)
    return ActionCosts(forward, backward, link if placement.stages > 1 else 0.0, inputs, weights)


def pipelined(
    work: Work,
    pipelines: int,
    pieces: Pieces,
    network: Network,
    inside: str,
    overhead: float,
    shards: int = 1,
    memory: int | None = None,
) -> Plan:
    """Return the plan for pipelines side by side, with the fastest placement that fits. One stage: data parallelism.

    With `shards`, groups of `shards` pipelines divide the optimizer state, as in ZeRO-1: a reduce-scatter replaces the
    all-reduce, and each weight is gathered once, at the start, while the first pieces pass through the pipeline.
    """
    prepared, blocks = pieces.prepared, work.block_seconds(pipelines * pieces.micro_batches, pieces.chunks)
    placement = placed(work, pipelines, pieces, memory, shards)
    replicas, per_node = pipelines // shards, network.replicas_per_node(pipelines, pieces.stages, inside)
    near = min(shards, per_node)
    last_places = [placement.blocks_of(position)[-1] for position in range(placement.stages - 1)]
    widest = max((work.edges[place] for place in last_places), default=0)
    message = widest / (pipelines * pieces.micro_batches * pieces.chunks)
    costs = costs_of(placement, blocks, network.between_stages(pipelines, pieces.stages, inside).seconds(message))
    times = prepared.stopwatch.times(costs.with_overhead(overhead))

    gathering = partial(network.gather_seconds, ranks=shards, per_node=near)
    summing = gathering if shards > 1 else partial(network.all_reduce_seconds, ranks=replicas, per_node=per_node)

    def across(size: float) -> float:
        return network.all_reduce_seconds(size / shards, replicas, max(1, per_node // near)) if shards > 1 else 0.0

    def of_block(seconds: Callable[[float], float], place: int) -> float:
        # Every tensor of a block is a separate message; we count all the bytes in one of them.
        tensors = {LSTM: 4, EMBEDDING: 1}.get(work.blocks[place].kind, 2)  # an LSTM: two matrices and two biases
        return seconds(work.memory[place].gradients) + (tensors - 1) * seconds(0.0)

    late, summed, updated, by_stage = 0.0, [], [], prepared.blocks_of_stages(placement)
    for stage, places in enumerate(by_stage):
        steps = [time for (owner, _), time in zip(prepared.stopwatch.order, times, strict=True) if owner == stage]
        begins, gathered = min(start for start, _ in steps), 0.0
        for place in sorted(places):  # weights are gathered in order, and a stage waits for those that it needs
            gathered += of_block(gathering, place)
            late = max(late, gathered - begins)
            begins += blocks[place].forward
        messages = []
        for position, number in prepared.finals[stage]:  # a block's gradients are sent once they are final
            ready, end = times[number]
            backward_order = placement.blocks_of(position)[::-1]
            lasts, total = end - ready, sum(blocks[place].backward for place in backward_order) or 1.0
            for place in backward_order:  # within the last backward pass, in proportion to the blocks' times
                ready += lasts * blocks[place].backward / total
                messages.append((ready, of_block(summing, place)))
        end = max(max(end for _, end in steps), sent_by(messages)) + sum(of_block(across, place) for place in places)
        summed.append(end)
        updated.append(end + work.update_seconds(places, shards))
    makespan = max(end for _, end in times)
    sizes = [stage_bytes(work, pipelines, prepared, stage, places, shards) for stage, places in enumerate(by_stage)]
    return Plan(
        replicas=replicas,
        pieces=pieces,
        placement=placement,
        costs=costs,
        overhead=overhead,
        pipeline_seconds=makespan,
        exposed_seconds=late + max(*summed, makespan) - makespan,
        update_seconds=max(updated) - max(summed),
        bytes=round(max(sizes)),
        inside=inside,
        shards=shards,
        sharding=ZERO_1 if shards > 1 else "",
        gather_seconds=late,
    )
