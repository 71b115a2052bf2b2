"""How long an update takes under a plan, and how much memory it needs: one function for each kind of plan.

One rule decides how much communication computation hides. A device computes one thing at a time; in parallel, its
network sends one message at a time, once its data is ready. Computation waits only for what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import starmap

from course_lib.planning.block_times import BlockSeconds
from course_lib.planning.network import Network
from course_lib.planning.placement import BlockCost, CannotPlace, Placement, balanced, smallest
from course_lib.planning.plan import FSDP, HALF, ZERO_1, Pieces, Plan, Prepared, Work
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


def fully_sharded_seconds(
    blocks: Sequence[BlockSeconds],
    gather: Sequence[float],
    scatter: Sequence[float],
    micro_batches: int,
    ahead: bool = True,
) -> float:
    """Return how long a device takes that gathers its weights block by block, and reduce-scatters their gradients.

    All are seconds per block, for one micro-batch. A block is gathered while the previous one computes or, without
    `ahead`, afterwards, as when ranks share cores. Only the last micro-batch sends gradients.
    """
    last, computed, sent = len(blocks) - 1, 0.0, 0.0  # when the device, and its network, have done all so far
    for number in range(micro_batches):
        gathered_at = sent = max(sent, computed) + gather[0]
        for place, block in enumerate(blocks):
            start = max(computed, gathered_at)
            computed = start + block.forward
            if place < last:
                gathered_at = sent = max(sent, start if ahead else computed) + gather[place + 1]
        gathered_at = 0.0  # the last block is still whole: if dropped, it would be gathered again immediately
        for place in range(last, -1, -1):
            start = max(computed, gathered_at)
            computed = start + blocks[place].backward
            if place > 0:
                gathered_at = sent = max(sent, start if ahead else computed) + gather[place - 1]
            if number == micro_batches - 1:
                sent = max(sent, computed) + scatter[place]
                computed = computed if ahead else sent
    return max(computed, sent)


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
    prepared, blocks = pieces.prepared, work.block_seconds(pipelines, pieces)
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
        return seconds(work.memory[place].gradients) + (work.tensors[place] - 1) * seconds(0.0)

    late, summed, updated, by_stage = 0.0, [], [], _blocks_of_stages(placement, prepared)
    for stage, places in enumerate(by_stage):
        steps = [time for (owner, _), time in zip(prepared.stopwatch.order, times, strict=True) if owner == stage]
        begins, gathered = min(start for start, _ in steps), 0.0
        for place in sorted(places):  # weights are gathered in order, and a stage waits for those that it needs
            gathered += of_block(gathering, place)
            late = max(late, gathered - begins)
            begins += blocks[place].forward
        messages = []
        for position, number in prepared.finals[stage]:  # a block's gradients are sent once they are final
            backward_order = placement.blocks_of(position)[::-1]
            ready = ready_times(*times[number], [blocks[place].backward for place in backward_order])
            messages += zip(ready, (of_block(summing, place) for place in backward_order), strict=True)
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


def placed(work: Work, replicas: int, pieces: Pieces, memory: int | None, shards: int = 1) -> Placement:
    """Return the fastest placement that fits into `memory`, or the smallest; with virtual stages, the fastest."""
    prepared, blocks = pieces.prepared, work.block_seconds(replicas, pieces)
    positions, is_virtual = prepared.schedule.stage_map.positions, prepared.schedule.virtual > 1
    costs = [
        BlockCost(seconds.forward + seconds.backward, round(stage_bytes(work, replicas, prepared, 0, [place], shards)))
        for place, seconds in enumerate(blocks)
    ]

    def size(stage: int, places: Sequence[int]) -> float:
        return stage_bytes(work, replicas, prepared, stage, places, shards)

    fastest = balanced(costs, positions)
    if memory is None or is_virtual or max(starmap(size, enumerate(_blocks_of_stages(fastest, prepared)))) <= memory:
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


def stage_bytes(
    work: Work, pipelines: int, prepared: Prepared, stage: int, places: Sequence[int], shards: int = 1
) -> float:
    """Return the bytes these blocks need on this stage: their states, and the activations that the schedule holds."""
    copies = sum(map(work.gathered, places)) if work.precision == HALF else 0  # autocast keeps a copy of each weight
    activations = prepared.held[stage] * work.activations(places)
    first_place = min(places)
    if first_place > 0:  # the batch itself is not counted on any stage
        activations += prepared.inputs_held[stage] * work.edges[first_place - 1]
    return work.states(places, shards) + copies + activations / pipelines


def costs_of(placement: Placement, blocks: Sequence[BlockSeconds], link: float) -> ActionCosts:
    """Return the costs of one action at each position, summed over its blocks."""
    positions = [placement.blocks_of(position) for position in range(placement.stages)]
    parts = [sum((blocks[place] for place in rest), blocks[head]).parts for head, *rest in positions]
    forward, backward, inputs, weights = zip(*parts, strict=True)
    return ActionCosts(forward, backward, link if placement.stages > 1 else 0.0, inputs, weights)


def sharded(
    work: Work, replicas: int, shards: int, micro_batches: int, network: Network, overhead: float, ahead: bool = True
) -> Plan:
    """Return the plan for fully sharded data parallelism: each block is gathered before it computes, then dropped."""
    pieces, places = Pieces("1f1b", 1, micro_batches), range(len(work.blocks))
    blocks = work.block_seconds(replicas * shards, pieces)
    sizes, whole = [memory.parameters for memory in work.memory], [work.gathered(place) for place in places]
    per_node = min(shards, network.per_node)
    across = network.replicas_per_node(replicas, shards, "stages")
    gather = [network.gather_seconds(size, shards, per_node) for size in whole]
    scatter = [
        network.gather_seconds(size, shards, per_node) + network.all_reduce_seconds(size / shards, replicas, across)
        for size in sizes
    ]
    placement = Placement(tuple(0 for _ in places))
    costs = costs_of(placement, blocks, 0.0)
    computing = sum(pieces.prepared.busy(costs.with_overhead(overhead)))
    finished = fully_sharded_seconds(blocks, gather, scatter, micro_batches, ahead) + 2 * micro_batches * overhead
    # A bound: a shard of all states, two whole blocks (the current and the next), whole gradients of the largest block
    # (with several micro-batches: of all blocks), and activations.
    gathered_pair = max(sum(whole[place : place + 2]) for place in places)
    gradients = max(sizes) if micro_batches == 1 else sum(sizes)
    activations = work.activations(places) / (replicas * shards * micro_batches)
    return Plan(
        replicas=replicas,
        pieces=pieces,
        placement=placement,
        costs=costs,
        overhead=overhead,
        pipeline_seconds=computing,
        exposed_seconds=finished - computing,
        update_seconds=work.update_seconds(places, shards),
        bytes=round(work.states(places) / shards + gathered_pair + gradients + activations),
        shards=shards,
        sharding=FSDP,
        gather_seconds=finished - computing,
    )
