"""How long an update takes if parameters are fully sharded."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.model_parallel.placement import Placement
from course_lib.model_parallel.work import Work
from course_lib.one_device.block_times import BlockSeconds
from course_lib.sharding.network import Network
from course_lib.sharding.plan import FSDP, Pieces, Plan, costs_of


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


def sharded(
    work: Work, replicas: int, shards: int, micro_batches: int, network: Network, overhead: float, ahead: bool = True
) -> Plan:
    """Return the plan for fully sharded data parallelism: each block is gathered before it computes, then dropped."""
    pieces, places = Pieces("1f1b", 1, micro_batches), range(len(work.blocks))
    blocks = work.block_seconds(replicas * shards * pieces.micro_batches, pieces.chunks)
    sizes, whole = [memory.parameters for memory in work.memory], [work.gathered(place) for place in places]
    per_node = min(shards, network.per_node)
    across = network.replicas_per_node(replicas, shards, "stages")
    gather = [network.gather_seconds(size, shards, per_node) for size in whole]
    scatter = [
        network.gather_seconds(size, shards, per_node) + network.all_reduce_seconds(size / shards, replicas, across)
        for size in sizes
    ]
    placement = Placement((0,) * len(blocks))
    costs = costs_of(placement, blocks, 0.0)
    computing = sum(pieces.prepared.busy(costs.with_overhead(overhead)))
    finished = fully_sharded_seconds(blocks, gather, scatter, micro_batches, ahead) + 2 * micro_batches * overhead
    # A bound: a shard of all states, two whole blocks (the current and the next), whole gradients of the largest block
    # (with several micro-batches: of all blocks), and activations.
    gathered_pair = max(sum(whole[place : place + 2]) for place in places)
    gradients = max(sizes) if micro_batches == 1 else sum(sizes)
    activations = sum(memory.activations for memory in work.memory) / (replicas * shards * micro_batches)
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
