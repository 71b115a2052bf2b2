"""What would have to change for another plan to win: a link, a device's speed, the size of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

from course_lib.planning.network import Link, Network
from course_lib.planning.placement import CannotPlace
from course_lib.planning.plan import FSDP, Plan, Work
from course_lib.planning.planner import best_of_each_way
from course_lib.planning.timing import pipelined, placed, sharded

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
    value: str  # the quantity after the change, if it has a unit

    def __str__(self) -> str:
        times = f"{self.factor:.1f} times as much" if self.factor > 1 else f"1/{1 / self.factor:.1f} of it"
        value = f" ({self.value})" if self.value else ""
        return f"{self.quantity}: with {times}{value}, {self.winner.name_and_order} wins"


@dataclass(frozen=True)
class Sensitivity:
    """What would have to change for a different mesh, or order of its ranks, to win. `str` lists the changes."""

    work: Work
    network: Network
    candidates: tuple[Plan, ...]  # the best plans of each way, which are timed again after each change
    memory: int | None = None  # bytes per rank
    gather_ahead: bool = True

    @property
    def winner(self) -> Plan:
        return self.winner_after(SPEED, 1.0)

    @property
    def quantities(self) -> list[str]:
        """What can change. If the links inside and between nodes are the same, there is only one bandwidth."""
        bandwidths = [EVERYWHERE] if self.network.inside == self.network.between else [INSIDE, BETWEEN]
        return [*bandwidths, LATENCY, SPEED, SEQUENCES]

    @property
    def changes(self) -> list[Change]:
        """For each quantity, the smallest increase and the smallest decrease that change the winner, if any."""
        steps = [(quantity, step) for quantity in self.quantities for step in (2.0, 0.5)]
        return list(filter(None, starmap(self._first_change, steps)))

    def winner_after(self, quantity: str, factor: float) -> Plan:
        """Return the fastest plan that fits if one quantity is multiplied by `factor`."""
        work, network, _ = self._changed(quantity, factor)
        plans = [
            timed_again(plan, work, network, self.gather_ahead, self.memory)
            for plan in self.candidates
            if plan.ranks // plan.stages * plan.pieces.micro_batches <= work.sequences
        ]
        fitting = [plan for plan in plans if self.memory is None or plan.bytes <= self.memory]
        if not fitting:
            raise CannotPlace(f"no plan fits with {factor:g} times the {quantity}")
        return min(fitting, key=lambda plan: plan.seconds)

    def _changed(self, quantity: str, factor: float) -> tuple[Work, Network, str]:
        """Return the work and the network after a change, and the quantity's new value as text."""
        work, inside, between = self.work, self.network.inside, self.network.between
        if quantity == SPEED:
            return work.scaled(speed=factor), self.network, ""
        if quantity == SEQUENCES:
            work = work.scaled(sequences=factor)
            return work, self.network, f"{work.sequences:,}"
        if quantity not in self.quantities:
            raise ValueError(f"quantity={quantity!r}: choose {', '.join(self.quantities)}")
        if quantity == LATENCY:
            inside, between = (Link(link.latency * factor, link.bandwidth) for link in (inside, between))
        if quantity in (INSIDE, EVERYWHERE):
            inside = Link(inside.latency, inside.bandwidth * factor)
        if quantity in (BETWEEN, EVERYWHERE):
            between = Link(between.latency, between.bandwidth * factor)
        value = f"{(inside if quantity == INSIDE else between).bandwidth / 1e9:,.0f} GB/s"
        if quantity == LATENCY:
            value = f"{1e6 * between.latency:.0f} microseconds"
        return work, Network(inside, between, self.network.per_node), value

    def _first_change(self, quantity: str, step: float) -> Change | None:
        """Find the smallest change: multiply by `step` until a different mesh wins, then bisect."""

        def mesh_after(factor: float) -> tuple[str, str] | None:
            try:
                winner = self.winner_after(quantity, factor)
            except CannotPlace:
                return None  # too few sequences for any plan
            return winner.mesh, winner.inside

        current, near, far = mesh_after(1.0), 1.0, step
        while mesh_after(far) == current:
            near, far = far, far * step
            if max(far, 1 / far) > FARTHEST:
                return None
        for _ in range(HALVINGS):
            middle = math.sqrt(near * far)
            near, far = (middle, far) if mesh_after(middle) == current else (near, middle)
        if mesh_after(far) is None:
            return None
        return Change(quantity, far, self.winner_after(quantity, far), self._changed(quantity, far)[2])

    def __str__(self) -> str:
        winner, changes = self.winner, self.changes
        unchanged = [name for name in self.quantities if name not in {change.quantity for change in changes}]
        lines = [
            f"{winner.name_and_order} wins: {1000 * winner.seconds:.0f} ms per update.",
            "A different mesh would win if one thing changed:",
            *(f"  {change}" for change in changes),
        ]
        if unchanged:
            lines.append(f"  {' or '.join(unchanged)}: a factor of {FARTHEST:g} up or down changes nothing")
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
    return Sensitivity(work, network, tuple(candidates), memory, gather_ahead)


def timed_again(plan: Plan, work: Work, network: Network, gather_ahead: bool = True, memory: int | None = None) -> Plan:
    """Return the same mesh and schedule for different work or a different network. The blocks are placed again."""
    if plan.sharding == FSDP:
        cut = plan.replicas, plan.shards, plan.pieces.micro_batches
        return sharded(work, *cut, network, plan.overhead, gather_ahead)
    width = plan.replicas * plan.shards
    placement = placed(work, width, plan.pieces, memory, plan.shards)
    return pipelined(work, width, plan.pieces, placement, network, plan.inside, plan.overhead, plan.shards)
