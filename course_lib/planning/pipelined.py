"""What replicas of a pipeline take and hold: the schedule played through, sums over replicas, the update."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.planning.block_times import BlockSeconds
from course_lib.planning.cluster import Network
from course_lib.planning.costs import ActionCosts
from course_lib.planning.overlap import ready_times, sent_by
from course_lib.planning.pieces import Pieces, Prepared, Times
from course_lib.planning.placement import BlockCost, CannotPlace, Placement, balanced, smallest
from course_lib.planning.plan import Plan
from course_lib.planning.work import Work


def pipelined(
    work: Work, replicas: int, pieces: Pieces, placement: Placement, network: Network, inside: str, overhead: float
) -> Plan:
    """Replicas of a pipeline; one stage is data parallelism."""
    prepared = pieces.prepared
    cut, blocks = replicas * pieces.micro_batches, block_seconds(work, replicas, pieces)
    link = network.between_stages(replicas, pieces.stages, inside)
    costs = costs_of(placement, blocks, link.seconds(_edge(work, placement) / (cut * pieces.chunks)))
    times = prepared.stopwatch.times(costs.with_overhead(overhead))
    per_node = network.replicas_per_node(replicas, pieces.stages, inside)
    sums = [
        network.all_reduce_seconds(each.gradients, replicas, per_node) if replicas > 1 else 0.0 for each in work.memory
    ]
    makespan = max(end for _, end in times)
    ends = prepared.ends(times)
    done = [max(end, _summed(stage, prepared, placement, blocks, times, sums)) for stage, end in enumerate(ends)]
    places = _blocks_of_stages(placement, prepared)
    updated = [end + work.update_seconds(work.weights(own)) for end, own in zip(done, places, strict=True)]
    return Plan(
        replicas,
        pieces,
        placement,
        costs,
        overhead,
        makespan,
        max(*done, makespan) - makespan,
        max(updated) - max(done),
        round(max(_bytes(work, replicas, prepared, stage, own) for stage, own in enumerate(places))),
        inside,
    )


def block_seconds(work: Work, replicas: int, pieces: Pieces) -> list[BlockSeconds]:
    """What each block takes for one piece."""
    cut = replicas * pieces.micro_batches
    return [work.seconds(place, cut, pieces.chunks) for place in range(len(work.blocks))]


def placed(work: Work, replicas: int, pieces: Pieces, memory: int | None) -> Placement:
    """The fastest placement; if that is too large for `memory`, the fastest one that is not, where there is one."""
    prepared, blocks = pieces.prepared, block_seconds(work, replicas, pieces)
    positions, is_virtual = prepared.schedule.places.positions, prepared.schedule.virtual > 1
    costs = [
        BlockCost(each.forward + each.backward, round(_bytes(work, replicas, prepared, 0, [place])))
        for place, each in enumerate(blocks)
    ]

    def size(stage: int, places: Sequence[int]) -> float:
        return _bytes(work, replicas, prepared, stage, places)

    fastest = balanced(costs, positions)
    own = _blocks_of_stages(fastest, prepared)
    if memory is None or is_virtual or max(size(*each) for each in enumerate(own)) <= memory:
        return fastest
    try:
        return balanced(costs, positions, memory, size)
    except CannotPlace:
        return smallest(len(blocks), positions, size)


def _blocks_of_stages(placement: Placement, prepared: Prepared) -> list[list[int]]:
    """For each stage its blocks, of all its virtual stages."""
    own: list[list[int]] = [[] for _ in prepared.schedule.stages]
    for position in range(placement.stages):
        own[prepared.schedule.places.place(position)[0]] += placement.blocks_of(position)
    return own


def _bytes(work: Work, replicas: int, prepared: Prepared, stage: int, places: Sequence[int]) -> float:
    """What these blocks need on this stage: their numbers, and the activations that the schedule holds at once."""
    kept = prepared.held[stage] * work.activations(places)
    first = min(places)
    if first > 0:  # the batch itself counts nowhere
        kept += prepared.inputs_held[stage] * work.edges[first - 1]
    return work.states(places) + kept / replicas


def _edge(work: Work, placement: Placement) -> int:
    """Bytes of the widest cut, for the whole batch."""
    ends = [placement.blocks_of(position)[-1] for position in range(placement.stages - 1)]
    return max((work.edges[place] for place in ends), default=0)


def costs_of(placement: Placement, blocks: Sequence[BlockSeconds], link: float) -> ActionCosts:
    """What one action takes at each position: the sum of its blocks."""
    parts = []
    for position in range(placement.stages):
        first, *others = (blocks[place] for place in placement.blocks_of(position))
        parts.append(sum(others, first).parts)
    forward, backward, inputs, weights = zip(*parts, strict=True)
    return ActionCosts(forward, backward, link if placement.stages > 1 else 0.0, inputs, weights)


def _summed(
    stage: int,
    prepared: Prepared,
    placement: Placement,
    blocks: Sequence[BlockSeconds],
    times: Times,
    sums: Sequence[float],
) -> float:
    """When a stage's gradients have been summed over the replicas: block by block, each as soon as it is final."""
    messages = []
    for position, number in prepared.finals[stage]:
        places = placement.blocks_of(position)[::-1]
        ready = ready_times(*times[number], [blocks[place].backward for place in places])
        messages += [(when, sums[place]) for when, place in zip(ready, places, strict=True)]
    return sent_by(messages)
