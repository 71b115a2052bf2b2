"""What would have to change for another plan to win: a link, a device's speed or memory, the size of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from course_lib.planning.network import Link, Network
from course_lib.planning.placement import CannotPlace
from course_lib.planning.plan import FSDP, Plan, Work
from course_lib.planning.planner import best_of_each_way
from course_lib.planning.timing import pipelined, placed, sharded

FARTHEST = 32.0  # a change by a larger factor means a different machine, or a different job
STEPS = 6  # halvings of the interval in which the verdict changes
BANDWIDTHS = EVERYWHERE, INSIDE, BETWEEN = "bandwidth", "bandwidth inside a node", "bandwidth between nodes"
LATENCY, SPEED, SEQUENCES, MEMORY = "latency", "speed of a device", "sequences per update", "memory of a device"


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
        return f"{self.quantity}: with {times}{value}, {self.winner.name}{_order(self.winner)} wins"


@dataclass(frozen=True)
class Sensitivity:
    """What would have to change for a different mesh, or order of its ranks, to win. `str` lists the changes."""

    work: Work
    network: Network
    memory: int | None
    candidates: tuple[Plan, ...]  # the best plans of each way, which are timed again after each change
    everything: tuple[Plan, ...]  # all plans, even if they need more memory
    gather_ahead: bool = True

    @property
    def winner(self) -> Plan:
        return self.winner_after(SPEED, 1.0)

    @property
    def quantities(self) -> list[str]:
        """What can change. If the links inside and between nodes are the same, there is only one bandwidth."""
        links = BANDWIDTHS[:1] if self.network.inside == self.network.between else BANDWIDTHS[1:]
        return [*links, LATENCY, SPEED, SEQUENCES]

    @property
    def changes(self) -> list[Change]:
        """For each quantity, the smallest increase and the smallest decrease that change the winner, if any."""
        attempts = [(quantity, direction) for quantity in self.quantities for direction in (FARTHEST, 1 / FARTHEST)]
        changes = [self._first_change(*each) for each in attempts]
        return [*filter(None, changes), *self._of_memory()]

    def winner_after(self, quantity: str, factor: float) -> Plan:
        """Return the fastest plan that fits if one quantity is multiplied by `factor`."""
        timed = [plan for _, plan in self._timed(quantity, factor) if self.memory is None or plan.bytes <= self.memory]
        if not timed:
            raise CannotPlace(f"no plan fits with {factor:g} times the {quantity}")
        return min(timed, key=lambda plan: plan.seconds)

    def _timed(self, quantity: str, factor: float) -> list[tuple[Plan, Plan]]:
        """Return each candidate and the same plan after the change, without those that would have too few sequences."""
        work, network = self.work, self.network
        if quantity in (SPEED, SEQUENCES):
            work = work.scaled(**{"speed" if quantity == SPEED else "sequences": factor})
        elif quantity in BANDWIDTHS or quantity == LATENCY:
            network = _changed(network, quantity, factor)
        else:
            raise ValueError(f"quantity={quantity!r}: choose {', '.join(self.quantities)}")
        return [
            (plan, timed_again(plan, work, network, self.gather_ahead, self.memory))
            for plan in self.candidates
            if plan.ranks // plan.stages * plan.pieces.micro_batches <= work.sequences
        ]

    def _first_change(self, quantity: str, farthest: float) -> Change | None:
        """Find the smallest change up to `farthest`: double the factor until a different mesh wins, then bisect."""
        current, near, step = _mesh(self.winner), 1.0, 2.0 if farthest > 1 else 0.5
        far = step
        while self._mesh_after(quantity, far) == current:
            near, far = far, far * step
            if abs(math.log(far)) > abs(math.log(farthest)) + 1e-9:
                return None
        for _ in range(STEPS):
            middle = math.sqrt(near * far)
            near, far = (middle, far) if self._mesh_after(quantity, middle) == current else (near, middle)
        if self._mesh_after(quantity, far) is None:
            return None
        return Change(quantity, far, self.winner_after(quantity, far), self._value(quantity, far))

    def _mesh_after(self, quantity: str, factor: float) -> tuple[str, str] | None:
        """Return the mesh that wins after a change; None if there are too few sequences for any plan."""
        try:
            return _mesh(self.winner_after(quantity, factor))
        except CannotPlace:
            return None

    def _value(self, quantity: str, factor: float) -> str:
        if quantity in BANDWIDTHS or quantity == LATENCY:
            network = _changed(self.network, quantity, factor)
            link = network.inside if quantity == INSIDE else network.between
            if quantity == LATENCY:
                return f"{1e6 * link.latency:.0f} microseconds"
            return f"{link.bandwidth / 1e9:,.0f} GB/s"
        if quantity == SPEED:
            return ""
        return f"{self.work.scaled(sequences=factor).sequences:,}"

    def _of_memory(self) -> list[Change]:
        """Return how much more memory would let a faster mesh fit, and how little would rule out the winner's mesh."""
        if self.memory is None:
            return []
        winner, plans = self.winner, []
        faster = [plan for plan in self.everything if plan.seconds < winner.seconds and _mesh(plan) != _mesh(winner)]
        if too_large := [plan for plan in faster if plan.bytes > self.memory]:
            plans.append(min(too_large, key=lambda plan: plan.bytes))
        least = min(plan.bytes for plan in self.everything if _mesh(plan) == _mesh(winner))
        if smaller := [plan for plan in self.everything if plan.bytes < least]:
            plans.append(min(smaller, key=lambda plan: plan.seconds))
        sizes = [plan.bytes if plan.bytes > self.memory else least - 1 for plan in plans]
        return [
            Change(MEMORY, size / self.memory, plan, f"{size / 1e9:,.0f} GB")
            for plan, size in zip(plans, sizes, strict=True)
        ]

    def __str__(self) -> str:
        verdict = f"{self.winner.name}{_order(self.winner)} wins: {1000 * self.winner.seconds:.0f} ms per update."
        changes = self.changes
        changed = {change.quantity for change in changes}
        unchanged = [quantity for quantity in self.quantities if quantity not in changed]
        lines = [verdict, "A different mesh would win if one thing changed:", *(f"  {change}" for change in changes)]
        no_change = f"  {' or '.join(unchanged)}: a factor of {FARTHEST:g} up or down changes nothing"
        return "\n".join([*lines, *([no_change] if unchanged else [])])


def sensitivity(
    all_plans: Sequence[Plan], work: Work, network: Network, *, memory: int | None = None, gather_ahead: bool = True
) -> Sensitivity:
    """Return what would have to change for a different mesh to win.

    `all_plans` is what `plans` returned for this work and network, *without* a memory limit, because plans that are too
    large now may win with more memory.
    """
    fitting = [plan for plan in all_plans if memory is None or plan.bytes <= memory]
    if not fitting:
        raise CannotPlace(f"no plan fits into {memory or 0:,} bytes: nothing wins, so nothing can change that")
    # The fastest plan of each way, and those with the most and the fewest pieces, which a change may make faster.
    candidates: dict[Plan, None] = {}
    for sign in (0, -1, 1):
        ranked = sorted(fitting, key=lambda plan: (sign * plan.pieces.micro_batches, plan.seconds))
        candidates |= dict.fromkeys(best_of_each_way(ranked))
    return Sensitivity(work, network, memory, tuple(candidates), tuple(all_plans), gather_ahead)


def timed_again(plan: Plan, work: Work, network: Network, gather_ahead: bool = True, memory: int | None = None) -> Plan:
    """Return the same mesh and schedule for different work or a different network. The blocks are placed again."""
    if plan.sharding == FSDP:
        cut = plan.replicas, plan.shards, plan.pieces.micro_batches
        return sharded(work, *cut, network, plan.overhead, gather_ahead)
    width = plan.replicas * plan.shards
    placement = placed(work, width, plan.pieces, memory, plan.shards)
    return pipelined(work, width, plan.pieces, placement, network, plan.inside, plan.overhead, plan.shards)


def _changed(network: Network, quantity: str, factor: float) -> Network:
    """Return the network with one quantity multiplied."""

    def change(link: Link, name: str) -> Link:
        if quantity == LATENCY:
            return Link(link.latency * factor, link.bandwidth)
        return Link(link.latency, link.bandwidth * factor) if quantity in (name, EVERYWHERE) else link

    return replace(network, inside=change(network.inside, INSIDE), between=change(network.between, BETWEEN))


def _mesh(plan: Plan) -> tuple[str, str]:
    return plan.mesh, plan.inside


def _order(plan: Plan) -> str:
    return f" ({plan.neighbors})" if plan.neighbors else ""
