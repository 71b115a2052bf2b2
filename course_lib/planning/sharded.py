"""What fully sharded data parallelism takes and holds: weights gathered block by block, gradients left in pieces."""

from __future__ import annotations

from course_lib.planning.cluster import Network
from course_lib.planning.overlap import Sharded
from course_lib.planning.pieces import Pieces
from course_lib.planning.pipelined import costs_of
from course_lib.planning.placement import Placement
from course_lib.planning.plan import Plan
from course_lib.planning.work import Work


def sharded(
    work: Work, replicas: int, shards: int, micro_batches: int, network: Network, overhead: float, ahead: bool = True
) -> Plan:
    """Data parallelism with sharded weights: every block is gathered before it works, and dropped afterwards."""
    pieces, places = Pieces("1f1b", 1, micro_batches), range(len(work.blocks))
    blocks = [work.seconds(place, replicas * shards * micro_batches) for place in places]
    sizes = [each.parameters for each in work.memory]
    per_node = min(shards, network.per_node)
    gather = [network.gather_seconds(size, shards, per_node) for size in sizes]
    across = network.replicas_per_node(replicas, shards, "stages")
    scatter = [
        seconds + (network.all_reduce_seconds(size / shards, replicas, across) if replicas > 1 else 0.0)
        for seconds, size in zip(gather, sizes, strict=True)
    ]
    placement = Placement(tuple(0 for _ in places))
    costs = costs_of(placement, blocks, 0.0)
    computing = sum(pieces.prepared.busy(costs.with_overhead(overhead)))
    done = Sharded(blocks, gather, scatter, ahead).step(micro_batches) + 2 * micro_batches * overhead
    return Plan(
        replicas,
        pieces,
        placement,
        costs,
        overhead,
        computing,
        done - computing,
        work.update_seconds(work.weights(places) / shards),
        round(_sharded_bytes(work, replicas * shards, shards, micro_batches)),
        shards=shards,
    )


def _sharded_bytes(work: Work, ranks: int, shards: int, micro_batches: int) -> float:
    """A piece of everything; two blocks whole, one at work and the next; and the whole gradient of one, or of all."""
    places = range(len(work.blocks))
    sizes = [each.parameters for each in work.memory]
    whole = max(sum(sizes[place : place + 2]) for place in places)
    gradients = max(sizes) if micro_batches == 1 else sum(sizes)
    return work.states(places) / shards + whole + gradients + work.activations(places) / (ranks * micro_batches)
