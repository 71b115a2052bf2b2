"""How long an update takes under a plan, and how much memory it needs: one function for each kind of plan.

One rule decides how much of the communication is hidden by computation. A device computes one thing at a time; in
parallel, its network sends one message at a time. A message starts when its data is ready and the previous message is
done, and computation waits only for what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add

from course_lib.planning.block_times import BlockSeconds
from course_lib.planning.network import Network
from course_lib.planning.placement import BlockCost, CannotPlace, Placement, balanced, smallest
from course_lib.planning.plan import FSDP, HALF, ZERO_1, Pieces, Plan, Prepared, Times, Work
from course_lib.planning.simulation import ActionCosts


def sent_by(messages: Iterable[tuple[float, float]]) -> float:
    """Return when the last of these messages, (ready, seconds) in sending order, is done; 0 if there are none."""
    free = 0.0
    for ready, seconds in messages:
        free = max(free, ready) + seconds
    return free


def ready_times(start: float, end: float, shares: Sequence[float]) -> list[float]:
    """Return when each part of the work from `start` to `end` is done, if the parts take these shares in sequence."""
    total, now, times = sum(shares) or 1.0, start, []
    for share in shares:
        now += (end - start) * share / total
        times.append(now)
    return times


@dataclass
class Sharded:
    """A device that gathers its weights block by block. So far, computation ends at `computed` and messages at `sent`.

    A block is gathered while the previous one computes or, without `ahead`, afterwards, as when ranks share cores.
    """

    blocks: Sequence[BlockSeconds]  # for one micro-batch
    gather: Sequence[float]  # seconds to all-gather each block
    scatter: Sequence[float]  # seconds to reduce-scatter its gradients
    ahead: bool = True
    computed: float = 0.0
    sent: float = 0.0

    def step(self, micro_batches: int) -> float:
        """Return when the last gradient has been reduced, which happens only in the last micro-batch."""
        for number in range(micro_batches):
            self._forward()
            self._backward(sends=number == micro_batches - 1)
        return max(self.computed, self.sent)

    def _forward(self) -> None:
        gathered_at = self._gather(0, self.computed)
        for place, block in enumerate(self.blocks):
            start = max(self.computed, gathered_at)
            self.computed = start + block.forward
            gathered_at = self._gather(place + 1, start if self.ahead else self.computed)

    def _backward(self, sends: bool) -> None:
        """Run the backward pass. The last block is still whole: if dropped, it would be gathered again immediately."""
        gathered_at = 0.0
        for place in reversed(range(len(self.blocks))):
            start = max(self.computed, gathered_at)
            self.computed = start + self.blocks[place].backward
            gathered_at = self._gather(place - 1, start if self.ahead else self.computed)
            if sends:
                self.sent = max(self.sent, self.computed) + self.scatter[place]
                self.computed = self.computed if self.ahead else self.sent

    def _gather(self, place: int, ready: float) -> float:
        """Return when the block at this place is whole, if its gather may start at `ready`."""
        if place not in range(len(self.blocks)):
            return 0.0
        self.sent = max(self.sent, ready) + self.gather[place]
        return self.sent


def pipelined(
    work: Work,
    pipelines: int,
    pieces: Pieces,
    placement: Placement,
    network: Network,
    inside: str,
    overhead: float,
    shards: int = 1,
) -> Plan:
    """Return the plan for pipelines side by side. With one stage, this is data parallelism.

    With `shards`, groups of `shards` pipelines divide the optimizer state, as in ZeRO-1: a reduce-scatter replaces the
    all-reduce, and each weight is gathered once, at the start, while the first pieces pass through the pipeline.
    """
    prepared = pieces.prepared
    cut, blocks = pipelines * pieces.micro_batches, block_seconds(work, pipelines, pieces)
    link = network.between_stages(pipelines, pieces.stages, inside)
    costs = costs_of(placement, blocks, link.seconds(_edge(work, placement) / (cut * pieces.chunks)))
    times = prepared.stopwatch.times(costs.with_overhead(overhead))
    per_node = network.replicas_per_node(pipelines, pieces.stages, inside)
    sizes = [(memory.gradients, tensors) for memory, tensors in zip(work.memory, work.tensors, strict=True)]
    sums, gathers, across = (_seconds(sizes, network, pipelines, per_node, shards, which) for which in range(3))
    makespan, ends = max(end for _, end in times), prepared.ends(times)
    places = _blocks_of_stages(placement, prepared)
    late = max(_gathered_late(stage, prepared, local, blocks, times, gathers) for stage, local in enumerate(places))
    summed = [
        max(end, _summed(stage, prepared, placement, blocks, times, sums))
        + sum(across[place] for place in places[stage])
        for stage, end in enumerate(ends)
    ]
    updates = [work.update_seconds(work.weights(local) / shards) for local in places]
    return Plan(
        pipelines // shards,
        pieces,
        placement,
        costs,
        overhead,
        makespan,
        late + max(*summed, makespan) - makespan,
        max(map(add, summed, updates)) - max(summed),
        round(max(_bytes(work, pipelines, prepared, stage, local, shards) for stage, local in enumerate(places))),
        inside,
        shards,
        ZERO_1 if shards > 1 else "",
        late,
    )


def _seconds(
    sizes: Sequence[tuple[int, int]], network: Network, pipelines: int, per_node: int, shards: int, which: int
) -> list[float]:
    """Return the time that each block needs to sum its gradients (0), gather its weights (1), or sum its rows'
    gradients over the replicas (2). Every tensor of a block is a separate message; we count all the bytes in one of
    them.
    """
    replicas, near = pipelines // shards, min(shards, per_node)

    def seconds(size: float) -> float:
        if which == 2:
            is_needed = shards > 1 and replicas > 1
            return network.all_reduce_seconds(size / shards, replicas, max(1, per_node // near)) if is_needed else 0.0
        if shards > 1:
            return network.gather_seconds(size, shards, near)
        return network.all_reduce_seconds(size, replicas, per_node) if which == 0 and replicas > 1 else 0.0

    return [seconds(size) + (tensors - 1) * seconds(0.0) for size, tensors in sizes]


def _gathered_late(
    stage: int,
    prepared: Prepared,
    places: Sequence[int],
    blocks: Sequence[BlockSeconds],
    times: Times,
    gathers: Sequence[float],
) -> float:
    """Return how late a stage is because it waits for its weights, which are gathered in order."""
    steps = zip(prepared.stopwatch.order, times, strict=True)
    begins = min(start for (owner, _), (start, _) in steps if owner == stage)
    late, gathered = 0.0, 0.0
    for place in sorted(places):
        gathered += gathers[place]
        late = max(late, gathered - begins)
        begins += blocks[place].forward
    return late


def block_seconds(work: Work, replicas: int, pieces: Pieces) -> list[BlockSeconds]:
    """Return each block's times for one piece."""
    cut = replicas * pieces.micro_batches
    return [work.seconds(place, cut, pieces.chunks) for place in range(len(work.blocks))]


def placed(work: Work, replicas: int, pieces: Pieces, memory: int | None, shards: int = 1) -> Placement:
    """Return the fastest placement that fits into `memory`; if none fits, the one that needs the least memory.

    With virtual stages, return the fastest placement, even if it does not fit.
    """
    prepared, blocks = pieces.prepared, block_seconds(work, replicas, pieces)
    positions, is_virtual = prepared.schedule.stage_map.positions, prepared.schedule.virtual > 1
    costs = [
        BlockCost(seconds.forward + seconds.backward, round(_bytes(work, replicas, prepared, 0, [place], shards)))
        for place, seconds in enumerate(blocks)
    ]

    def size(stage: int, places: Sequence[int]) -> float:
        return _bytes(work, replicas, prepared, stage, places, shards)

    fastest = balanced(costs, positions)
    by_stage = _blocks_of_stages(fastest, prepared)
    if memory is None or is_virtual or max(size(*seconds) for seconds in enumerate(by_stage)) <= memory:
        return fastest
    try:
        return balanced(costs, positions, memory, size)
    except CannotPlace:
        return smallest(len(blocks), positions, size)


def _blocks_of_stages(placement: Placement, prepared: Prepared) -> list[list[int]]:
    """Return the blocks of each stage, over all its virtual stages."""
    by_stage: list[list[int]] = [[] for _ in prepared.schedule.stages]
    for position in range(placement.stages):
        by_stage[prepared.schedule.stage_map.stage_at(position)[0]] += placement.blocks_of(position)
    return by_stage


def _bytes(work: Work, pipelines: int, prepared: Prepared, stage: int, places: Sequence[int], shards: int = 1) -> float:
    """Return the bytes these blocks need on this stage: their states, and the activations that the schedule holds.

    Autocast also keeps a copy of every weight in bfloat16.
    """
    copies = sum(map(work.gathered, places)) if work.precision == HALF else 0
    activations = prepared.held[stage] * work.activations(places)
    first_place = min(places)
    if first_place > 0:  # the batch itself is not counted on any stage
        activations += prepared.inputs_held[stage] * work.edges[first_place - 1]
    return work.states(places, shards) + copies + activations / pipelines


def _edge(work: Work, placement: Placement) -> int:
    """Return the bytes that cross the widest cut between stages, for the whole batch."""
    last_places = [placement.blocks_of(position)[-1] for position in range(placement.stages - 1)]
    return max((work.edges[place] for place in last_places), default=0)


def costs_of(placement: Placement, blocks: Sequence[BlockSeconds], link: float) -> ActionCosts:
    """Return the costs of one action at each position, summed over its blocks."""
    rows = []
    for position in range(placement.stages):
        head, *rest = (blocks[place] for place in placement.blocks_of(position))
        rows.append(sum(rest, head).parts)
    forward, backward, inputs, weights = zip(*rows, strict=True)
    return ActionCosts(forward, backward, link if placement.stages > 1 else 0.0, inputs, weights)


def _summed(
    stage: int,
    prepared: Prepared,
    placement: Placement,
    blocks: Sequence[BlockSeconds],
    times: Times,
    sums: Sequence[float],
) -> float:
    """Return when a stage's gradients have been all-reduced over the replicas, each block's once they are final."""
    messages = []
    for position, number in prepared.finals[stage]:
        places = placement.blocks_of(position)[::-1]
        ready = ready_times(*times[number], [blocks[place].backward for place in places])
        messages += [(when, sums[place]) for when, place in zip(ready, places, strict=True)]
    return sent_by(messages)


def sharded(
    work: Work, replicas: int, shards: int, micro_batches: int, network: Network, overhead: float, ahead: bool = True
) -> Plan:
    """Return the plan for fully sharded data parallelism: each block is gathered before it computes, then dropped."""
    pieces, places = Pieces("1f1b", 1, micro_batches), range(len(work.blocks))
    blocks = [work.seconds(place, replicas * shards * micro_batches) for place in places]
    sizes = [memory.parameters for memory in work.memory]
    per_node = min(shards, network.per_node)
    gather = [network.gather_seconds(work.gathered(place), shards, per_node) for place in places]
    across = network.replicas_per_node(replicas, shards, "stages")
    scatter = [
        network.gather_seconds(size, shards, per_node)
        + (network.all_reduce_seconds(size / shards, replicas, across) if replicas > 1 else 0.0)
        for size in sizes
    ]
    placement = Placement(tuple(0 for _ in places))
    costs = costs_of(placement, blocks, 0.0)
    computing = sum(pieces.prepared.busy(costs.with_overhead(overhead)))
    finished = Sharded(blocks, gather, scatter, ahead).step(micro_batches) + 2 * micro_batches * overhead
    return Plan(
        replicas,
        pieces,
        placement,
        costs,
        overhead,
        computing,
        finished - computing,
        work.update_seconds(work.weights(places) / shards),
        round(_sharded_bytes(work, replicas * shards, shards, micro_batches)),
        shards=shards,
        sharding=FSDP,
        gather_seconds=finished - computing,
    )


def _sharded_bytes(work: Work, ranks: int, shards: int, micro_batches: int) -> float:
    """Return a bound on the bytes: a shard of all states, two whole blocks (the current and the next), whole gradients
    of the largest block (with several micro-batches: of all blocks), and activations.
    """
    places = range(len(work.blocks))
    sizes, gathered = [memory.parameters for memory in work.memory], [work.gathered(place) for place in places]
    gathered_pair = max(sum(gathered[place : place + 2]) for place in places)
    gradients = max(sizes) if micro_batches == 1 else sum(sizes)
    return work.states(places) / shards + gathered_pair + gradients + work.activations(places) / (ranks * micro_batches)
