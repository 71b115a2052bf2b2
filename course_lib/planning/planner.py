"""Choose a parallelism plan by predicting the time and memory of an update for every way to cut model and batch.

The inputs are measured or counted: block times, which depend on the size of a piece, the sizes of gradients and
messages, and lesson 00's two numbers for each link. The output is a list of plans, fastest first.

`timing.py` has the rules by which a plan's time and memory are predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from tqdm import tqdm

from course_lib.planning.network import Network
from course_lib.planning.placement import CannotPlace
from course_lib.planning.plan import Pieces, Plan, Work
from course_lib.planning.timing import pipelined, placed, sharded

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
    zero: bool = True,
    gather_ahead: bool = True,
    overhead: float = 0.0,
    memory: int | None = None,
) -> list[Plan]:
    """Return every plan for `ranks` ranks that fits into `memory` bytes per rank, fastest first.

    We try replicas x stages in both orders of the mesh, with each schedule. With `sharding`, we also try fully sharded
    replicas and, unless `zero` is False, ZeRO-1: pipelines that divide the optimizer over the replicas in a node, or
    over all of them. One stage is data parallelism; with several micro-batches, gradient accumulation. `gather_ahead`
    says whether a block can be gathered while another one computes, as on GPUs. `overhead` is the fixed cost of
    starting an action, in seconds, regardless of its size.
    """
    candidates = list(_candidates(work, ranks, schedules, micro_batches, chunks, recompute))
    made = []
    for replicas, pieces in tqdm(candidates, desc="plans", delay=3, leave=False, disable=None):
        for inside in network.orders(replicas, pieces.stages):
            near = network.replicas_per_node(replicas, pieces.stages, inside)
            for shards in sorted({1, near, replicas}) if zero and sharding else [1]:
                placement = placed(work, replicas, pieces, memory, shards)
                made.append(pipelined(work, replicas, pieces, placement, network, inside, overhead, shards))
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
