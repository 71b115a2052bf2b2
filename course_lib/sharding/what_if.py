"""What would have to change for another plan to win: a link, a device's speed, the size of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.messages.link import Link
from course_lib.model_parallel.placement import CannotPlace
from course_lib.model_parallel.work import Work
from course_lib.sharding.choose_plan import best_of_each_way
from course_lib.sharding.fsdp_plan import sharded
from course_lib.sharding.network import Network
from course_lib.sharding.plan import FSDP, Plan, pipelined

FARTHEST = 32.0  # a change by a larger factor means a different machine, or a different job
HALVINGS = 6  # of the interval in which the winner changes
EVERYWHERE, INSIDE, BETWEEN = "bandwidth", "bandwidth inside a node", "bandwidth between nodes"
LATENCY, SPEED, SEQUENCES = "latency", "speed of a device", "sequences per update"


@dataclass(frozen=True)
class Change:
    """The smallest change of one quantity, up or down, after which a different mesh wins."""

    quantity: str
    factor: float
    winner: Plan
    value: str  # the quantity after the change, with its unit

    def __str__(self) -> str:
        times = f"{self.factor:.1f} times as much" if self.factor > 1 else f"1/{1 / self.factor:.1f} of it"
        return f"{self.quantity}: with {times}{self.value}, {self.winner.name_and_order} wins"


@dataclass(frozen=True)
class Sensitivity:
    """What would have to change for a different mesh, or order of its ranks, to win. `str` lists the changes."""

    winner: Plan
    changes: tuple[Change, ...]  # per quantity, the smallest increase and the smallest decrease, if any
    unchanged: tuple[str, ...]  # the quantities that change nothing

    def __str__(self) -> str:
        wins = f"{self.winner.name_and_order} wins: {1000 * self.winner.seconds:.0f} ms per update."
        lines = [wins, "A different mesh would win if one thing changed:", *(f"  {change}" for change in self.changes)]
        if self.unchanged:
            lines.append(f"  {' or '.join(self.unchanged)}: a factor of {FARTHEST:g} up or down changes nothing")
        return "\n".join(lines)


def sensitivity(
    all_plans: Sequence[Plan], work: Work, network: Network, *, memory: int | None = None, gather_ahead: bool = True
) -> Sensitivity:
    """Return what would have to change for a different one of the meshes to win that `plans` returned."""
    fitting = [plan for plan in all_plans if memory is None or plan.bytes <= memory]
    if not fitting:
        raise CannotPlace(f"no plan fits into {memory or 0:,} bytes: nothing wins, so nothing can change that")
    # The fastest plan of each way, and those with the most and the fewest pieces, which a change may make faster.
    candidates: dict[Plan, None] = {}
    for sign in (0, -1, 1):
        ranked = sorted(fitting, key=lambda plan: (sign * plan.pieces.micro_batches, plan.seconds))
        candidates |= dict.fromkeys(best_of_each_way(ranked))

    winner = min(fitting, key=lambda plan: plan.seconds)

    def winner_after(quantity: str, factor: float) -> Plan | None:
        """Return the fastest plan that fits after this change; None if there are too few sequences for any."""
        work_then, network_then, _ = changed(work, network, quantity, factor)
        possible = [p for p in candidates if p.ranks // p.stages * p.pieces.micro_batches <= work_then.sequences]
        timed = [timed_again(plan, work_then, network_then, gather_ahead, memory) for plan in possible]
        fits = [plan for plan in timed if memory is None or plan.bytes <= memory]
        return min(fits, key=lambda plan: plan.seconds, default=None)

    def still_wins(then: Plan | None) -> bool:
        return then is not None and (then.mesh, then.inside) == (winner.mesh, winner.inside)

    def first_change(quantity: str, step: float) -> Change | None:
        """Find the smallest change: multiply by `step` until a different mesh wins, then bisect."""
        near, far = 1.0, step
        while still_wins(then := winner_after(quantity, far)):
            near, far = far, far * step
            if max(far, 1 / far) > FARTHEST:
                return None
        for _ in range(HALVINGS):
            middle = math.sqrt(near * far)
            if still_wins(at_middle := winner_after(quantity, middle)):
                near = middle
            else:
                far, then = middle, at_middle
        return then and Change(quantity, far, then, changed(work, network, quantity, far)[2])

    # If the links inside and between nodes are the same, there is only one bandwidth.
    bandwidths = [EVERYWHERE] if network.inside == network.between else [INSIDE, BETWEEN]
    quantities = [*bandwidths, LATENCY, SPEED, SEQUENCES]
    found = [first_change(quantity, step) for quantity in quantities for step in (2.0, 0.5)]
    changing = {change.quantity for change in found if change}
    unchanged = tuple(quantity for quantity in quantities if quantity not in changing)
    return Sensitivity(winner, tuple(change for change in found if change), unchanged)


def changed(work: Work, network: Network, quantity: str, factor: float) -> tuple[Work, Network, str]:
    """Return the work and the network after one quantity is multiplied by `factor`, and its new value as text."""
    if quantity == SPEED:
        return work.scaled(speed=factor), network, ""
    if quantity == SEQUENCES:
        work = work.scaled(sequences=factor)
        return work, network, f" ({work.sequences:,})"
    inside, between = network.inside, network.between
    if quantity == LATENCY:
        inside, between = (Link(link.latency * factor, link.bandwidth) for link in (inside, between))
        return work, Network(inside, between, network.per_node), f" ({1e6 * between.latency:.0f} microseconds)"
    if quantity != BETWEEN:
        inside = Link(inside.latency, inside.bandwidth * factor)
    if quantity != INSIDE:
        between = Link(between.latency, between.bandwidth * factor)
    gigabytes = (inside if quantity == INSIDE else between).bandwidth / 1e9
    return work, Network(inside, between, network.per_node), f" ({gigabytes:,.0f} GB/s)"


def timed_again(plan: Plan, work: Work, network: Network, gather_ahead: bool = True, memory: int | None = None) -> Plan:
    """Return the same mesh and schedule for different work or a different network. The blocks are placed again."""
    count, pieces = plan.replicas * plan.shards, plan.pieces
    if plan.sharding == FSDP:
        return sharded(work, plan.replicas, plan.shards, pieces.micro_batches, network, plan.overhead, gather_ahead)
    return pipelined(work, count, pieces, network, plan.inside, plan.overhead, plan.shards, memory)
