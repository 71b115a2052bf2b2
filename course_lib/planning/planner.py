"""Choose a parallelism plan by predicting the time and memory of an update for every way to cut model and batch.

The inputs are measured or counted: block times, which depend on the size of a piece, the sizes of gradients and
messages, and lesson 00's two numbers for each link. The output is a list of plans, fastest first.

Plans hide communication behind computation, by one rule. A device computes one thing at a time, and its network sends
one message at a time, in parallel. A message starts when its data is ready and the previous message is done;
computation waits only for what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tqdm import tqdm

from course_lib.planning.block_times import BlockSeconds
from course_lib.planning.network import Network
from course_lib.planning.placement import BlockCost, CannotPlace, Placement, balanced, smallest
from course_lib.planning.plan import Pieces, Plan, Prepared, Times, Work
from course_lib.planning.simulation import ActionCosts

SPLIT = ("zb-h1", "zb-v")  # schedules that compute weight gradients separately
VIRTUAL = {"interleaved": 2, "zb-v": 2}  # parts of the model on each stage


def plans(
    work: Work,
    ranks: int,
    network: Network,
    *,
    schedules: Sequence[str] = ("1f1b", "wavefront", "interleaved", "zb-h1", "zb-v"),
    micro_batches: Sequence[int] = (1, 2, 4, 8, 16),
    chunks: Sequence[int] = (2, 4, 8),
    recompute: Sequence[bool] = (False, True),
    sharding: bool = True,
    gather_ahead: bool = True,
    overhead: float = 0.0,
    memory: int | None = None,
) -> list[Plan]:
    """Return every plan for `ranks` ranks that fits into `memory` bytes per rank, fastest first.

    We try replicas x stages in both orders of the mesh, with each schedule, and, with `sharding`, fully sharded
    replicas. One stage is data parallelism; with several micro-batches, gradient accumulation. `gather_ahead` says
    whether a block can be gathered while another one computes, as on GPUs. `overhead` is the fixed cost of starting an
    action, in seconds, regardless of its size.
    """
    candidates = list(_candidates(work, ranks, schedules, micro_batches, chunks, recompute))
    made = []
    for replicas, pieces in tqdm(candidates, desc="plans", delay=3, leave=False, disable=None):
        placement = placed(work, replicas, pieces, memory)
        for inside in network.orders(replicas, pieces.stages):
            made.append(pipelined(work, replicas, pieces, placement, network, inside, overhead))
    if sharding:
        made += [
            sharded(work, ranks // shards, shards, pieces, network, overhead, gather_ahead)
            for shards, pieces in product(_divisors(ranks)[1:], micro_batches)
            if ranks * pieces <= work.sequences
        ]
    fitting = [plan for plan in made if memory is None or plan.bytes <= memory]
    if not fitting:
        least = min((plan.bytes for plan in made), default=0)
        raise CannotPlace(
            f"no plan for {ranks} ranks fits into {memory or 0:,} bytes on each: the smallest needs {least:,} bytes"
        )
    return sorted(fitting, key=lambda plan: (plan.seconds, plan.bytes))


def best_of_each_way(made: Sequence[Plan]) -> list[Plan]:
    """Return the first plan for each mesh and rank order; `made` is sorted, fastest first."""
    first: dict[object, Plan] = {}
    for plan in made:
        first.setdefault(plan.way, plan)
    return list(first.values())


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _candidates(
    work: Work,
    ranks: int,
    schedules: Sequence[str],
    micro_batches: Sequence[int],
    chunks: Sequence[int],
    recompute: Sequence[bool],
) -> Iterator[tuple[int, Pieces]]:
    """Yield (replicas, pieces). Only the wavefront benefits from chunks, and a single stage from no schedule."""
    for stages, count, again in product(_divisors(ranks), micro_batches, recompute):
        if (ranks // stages) * count > work.sequences or stages > len(work.blocks):
            continue
        for name in schedules if stages > 1 else ("1f1b",):
            if stages * VIRTUAL.get(name, 1) > len(work.blocks) or (again and name in SPLIT):
                continue
            cuts = [cut for cut in chunks if cut <= work.steps] if name == "wavefront" else [1]
            yield from ((ranks // stages, Pieces(name, stages, count, cut, again)) for cut in cuts)


def sent_by(messages: Iterable[tuple[float, float]]) -> float:
    """Return when the last of these messages, (ready, seconds) in sending order, is done; 0 if there are none."""
    free = 0.0
    for ready, seconds in messages:
        free = max(free, ready) + seconds
    return free


def ready_times(start: float, end: float, shares: Sequence[float]) -> list[float]:
    """Return when each part of the work from `start` to `end` is done, if the parts take these shares in sequence."""
    whole, done, times = sum(shares) or 1.0, start, []
    for share in shares:
        done += (end - start) * share / whole
        times.append(done)
    return times


@dataclass
class Sharded:
    """A device whose weights are gathered block by block; `computed` and `sent` are when its work so far is done.

    A block is gathered while the previous one computes; without `ahead`, after it, as when ranks share cores.
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
        there = self._gather(0, self.computed)
        for place, block in enumerate(self.blocks):
            start = max(self.computed, there)
            self.computed = start + block.forward
            there = self._gather(place + 1, start if self.ahead else self.computed)

    def _backward(self, sends: bool) -> None:
        """Run backward. The last block is still whole: dropping it after its forward pass would mean regathering it."""
        there = 0.0
        for place in reversed(range(len(self.blocks))):
            start = max(self.computed, there)
            self.computed = start + self.blocks[place].backward
            there = self._gather(place - 1, start if self.ahead else self.computed)
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
    work: Work, replicas: int, pieces: Pieces, placement: Placement, network: Network, inside: str, overhead: float
) -> Plan:
    """Return the plan for replicas of a pipeline; with one stage, it is data parallelism."""
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
    """Return each block's times for one piece."""
    cut = replicas * pieces.micro_batches
    return [work.seconds(place, cut, pieces.chunks) for place in range(len(work.blocks))]


def placed(work: Work, replicas: int, pieces: Pieces, memory: int | None) -> Placement:
    """Return the fastest placement that fits into `memory`; if none fits, the one that needs least memory.

    With virtual stages, return the fastest placement whether it fits or not.
    """
    prepared, blocks = pieces.prepared, block_seconds(work, replicas, pieces)
    positions, is_virtual = prepared.schedule.stage_map.positions, prepared.schedule.virtual > 1
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
    """Return the blocks of each stage, over all its virtual stages."""
    own: list[list[int]] = [[] for _ in prepared.schedule.stages]
    for position in range(placement.stages):
        own[prepared.schedule.stage_map.stage_at(position)[0]] += placement.blocks_of(position)
    return own


def _bytes(work: Work, replicas: int, prepared: Prepared, stage: int, places: Sequence[int]) -> float:
    """Return the bytes these blocks need on this stage: their states, and the activations that the schedule holds.

    Autocast keeps a copy of every weight in bfloat16 besides.
    """
    copies = work.cast_weights(places) if work.precision == "bfloat16" else 0
    activations = prepared.held[stage] * work.activations(places)
    first = min(places)
    if first > 0:  # the batch itself is not counted on any stage
        activations += prepared.inputs_held[stage] * work.edges[first - 1]
    return work.states(places) + copies + activations / replicas


def _edge(work: Work, placement: Placement) -> int:
    """Return the bytes that cross the widest cut between stages, for the whole batch."""
    ends = [placement.blocks_of(position)[-1] for position in range(placement.stages - 1)]
    return max((work.edges[place] for place in ends), default=0)


def costs_of(placement: Placement, blocks: Sequence[BlockSeconds], link: float) -> ActionCosts:
    """Return the costs of one action at each position, summed over its blocks."""
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
    """Return when a stage's gradients have been all-reduced over the replicas, each block's as soon as it is final."""
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
    per_node = min(shards, network.per_node)
    gather = [network.gather_seconds(work.cast_weights([place]), shards, per_node) for place in places]
    across = network.replicas_per_node(replicas, shards, "stages")
    scatter = [
        network.gather_seconds(size, shards, per_node)
        + (network.all_reduce_seconds(size / shards, replicas, across) if replicas > 1 else 0.0)
        for size in (each.gradients for each in work.memory)  # in float32, like those of replicas
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
    """Return the peak bytes: a shard of all states, two whole blocks (the current and the next), whole gradients of the
    largest block (of all blocks with several micro-batches), and activations.
    """
    places = range(len(work.blocks))
    sizes = [each.parameters for each in work.memory]
    whole = max(work.cast_weights(places[place : place + 2]) for place in places)
    gradients = max(sizes) if micro_batches == 1 else sum(sizes)
    return work.states(places) / shards + whole + gradients + work.activations(places) / (ranks * micro_batches)
