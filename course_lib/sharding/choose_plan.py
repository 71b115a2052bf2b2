"""Choose a parallelism plan: predict the time and memory of an update for every way to cut the model and the batch.

The inputs are measured or counted: block times, which depend on the size of a piece, the sizes of gradients and
messages, and two numbers for each link. `plan` has the rules; `explain` shows why one plan is faster than another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tqdm import tqdm

from course_lib.model_parallel.placement import CannotPlace
from course_lib.model_parallel.work import Work
from course_lib.pipeline.named_schedules import VIRTUAL
from course_lib.sharding.fsdp_plan import sharded
from course_lib.sharding.network import Network
from course_lib.sharding.plan import PARTS, Pieces, Plan, pipelined

SPLIT = ("zb-h1", "zb-v")  # schedules that compute weight gradients separately
CHUNKED = ("wavefront", "interleaved")  # schedules in which chunks of time replace micro-batches


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
    sets whether a block can be gathered while another one computes, as on GPUs. `overhead` is the fixed cost of
    starting an action, in seconds, regardless of its size.
    """
    divisors = [divisor for divisor in range(1, ranks + 1) if ranks % divisor == 0]
    ways: list[tuple[int, Pieces]] = []  # (pipelines, pieces)
    for stages, count, recomputes in product(divisors, micro_batches, recompute):
        if (ranks // stages) * count > work.sequences:
            continue
        for name in schedules if stages > 1 else ("1f1b",):  # a single stage needs no schedule
            if stages * VIRTUAL.get(name, 1) > len(work.blocks) or (recomputes and name in SPLIT):
                continue
            cuts = {cut for cut in chunks if name in CHUNKED and cut <= work.steps}
            cuts |= set() if name == "wavefront" else {1}  # a wavefront of one chunk is 1F1B
            ways += [(ranks // stages, Pieces(name, stages, count, cut, recomputes)) for cut in sorted(cuts)]
    made = []
    for pipelines, pieces in tqdm(ways, desc="plans", delay=3, leave=False, disable=None):
        for inside in network.orders(pipelines, pieces.stages):
            near = network.replicas_per_node(pipelines, pieces.stages, inside)
            for shards in sorted({1, near, pipelines}) if zero and sharding else [1]:
                made.append(pipelined(work, pipelines, pieces, network, inside, overhead, shards, memory))
    for shards, count in product(divisors[1:] if sharding else [], micro_batches):
        if ranks * count <= work.sequences:
            made.append(sharded(work, ranks // shards, shards, count, network, overhead, gather_ahead))
    fitting = [plan for plan in made if memory is None or plan.bytes <= memory]
    if not fitting:
        least = min((plan.bytes for plan in made), default=0)
        raise CannotPlace(
            f"no plan for {ranks} ranks fits into {memory or 0:,} bytes on each: the smallest needs {least:,} bytes"
        )
    return sorted(fitting, key=lambda plan: (plan.seconds, plan.bytes))


def best_of_each_way(all_plans: Sequence[Plan]) -> list[Plan]:
    """Return the first plan for each mesh and rank order; `all_plans` is sorted, fastest first."""
    best: dict[object, Plan] = {}
    for plan in all_plans:
        best.setdefault((plan.name, plan.inside), plan)
    return list(best.values())


@dataclass(frozen=True)
class Explanation:
    """Two plans compared part by part. `str` returns a table and a sentence; `draw_plans` draws them."""

    winner: Plan
    runner_up: Plan

    @property
    def reason(self) -> str:
        """Why the winner is faster, in a sentence or two."""
        winner, runner_up = self.winner.parts, self.runner_up.parts
        ahead = self.runner_up.seconds - self.winner.seconds
        differences = {part: runner_up.get(part, 0.0) - winner.get(part, 0.0) for part in PARTS}
        large = [part for part in PARTS if abs(differences[part]) > 0.01 * abs(ahead)]
        large.sort(key=lambda part: -abs(differences[part]))
        saved, paid = (
            [f"{abs(differences[part]) * 1000:.1f} ms of {part}" for part in large if differences[part] * sign > 0]
            for sign in (1, -1)
        )
        saving, paying = ("mostly " * (len(parts) > 2) + " and ".join(parts[:2]) for parts in (saved, paid))
        text = f"{self.winner.name} is ahead of {self.runner_up.name} by {ahead * 1000:.1f} ms "
        text += f"({ahead / self.runner_up.seconds:.1%}). It saves {saving or 'nothing large'}"
        return text + (f", and pays {paying} for it." if paid else ".")

    def __str__(self) -> str:
        plans = (self.winner, self.runner_up)
        rows = [["", *(f"{plan.name}, {plan.pieces}" for plan in plans)]]
        for part in PARTS:
            if any(part in plan.parts for plan in plans):
                rows.append([part, *(f"{plan.parts.get(part, 0.0) * 1000:.1f} ms" for plan in plans)])
        rows.append(["an update", *(f"{plan.seconds * 1000:.1f} ms" for plan in plans)])
        label, width = max(map(len, PARTS)), max(map(len, rows[0]))
        return "\n".join([*(f"{row[0]:<{label}}  {row[1]:>{width}}  {row[2]:>{width}}" for row in rows), self.reason])


def explain(plan: Plan, runner_up: Plan) -> Explanation:
    """Compare two plans: return where each spends its time, and which parts make the difference."""
    return Explanation(plan, runner_up)
