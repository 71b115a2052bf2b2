"""Why one plan is faster than another, and what would have to change for another one to win."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from course_lib.planning.network import Link, Network
from course_lib.planning.placement import CannotPlace
from course_lib.planning.plan import FSDP, PARTS, Plan, Work
from course_lib.planning.planner import best_of_each_way
from course_lib.planning.timing import pipelined, sharded


@dataclass(frozen=True)
class Explanation:
    """Two plans compared part by part. `str` gives a table and a sentence; `pictures.plan_bars` draws the same."""

    winner: Plan
    runner_up: Plan

    @property
    def differences(self) -> dict[str, float]:
        """How many more seconds the runner-up spends on each part, largest difference first; negative means fewer."""
        ours, theirs = self.winner.parts, self.runner_up.parts
        found = {part: theirs.get(part, 0.0) - ours.get(part, 0.0) for part in PARTS}
        return dict(sorted(found.items(), key=lambda item: -abs(item[1])))

    @property
    def reason(self) -> str:
        """Why the winner is faster, in a sentence or two."""
        ahead = self.runner_up.seconds - self.winner.seconds
        saved, paid = (
            [f"{abs(seconds) * 1000:.1f} ms of {part}" for part, seconds in self.differences.items() if wanted(seconds)]
            for wanted in (lambda seconds: seconds > 0.01 * abs(ahead), lambda seconds: seconds < -0.01 * abs(ahead))
        )
        said = f"{self.winner.name} is ahead of {self.runner_up.name} by {ahead * 1000:.1f} ms "
        said += f"({ahead / self.runner_up.seconds:.1%}). It saves {' and '.join(saved[:2]) or 'nothing worth a line'}"
        return said + (f", and pays {' and '.join(paid[:2])} for it." if paid else ".")

    def __str__(self) -> str:
        both = (self.winner, self.runner_up)
        names = [f"{plan.name}, {plan.pieces}" for plan in both]
        width = max(map(len, names))
        rows = [f"{'':<18}  " + "  ".join(f"{name:>{width}}" for name in names)]
        for part in PARTS:
            if any(part in plan.parts for plan in both):
                cells = [f"{plan.parts.get(part, 0.0) * 1000:.1f} ms" for plan in both]
                rows.append(f"{part:<18}  " + "  ".join(f"{cell:>{width}}" for cell in cells))
        totals = "  ".join(f"{f'{plan.seconds * 1000:.1f} ms':>{width}}" for plan in both)
        return "\n".join([*rows, f"{'an update':<18}  {totals}", self.reason])


def explain(plan: Plan, runner_up: Plan) -> Explanation:
    """Return a comparison of both plans: where each spends its time, and what makes the difference."""
    return Explanation(plan, runner_up)


FARTHEST = 32.0  # a change by a larger factor is a different machine, or a different job
STEPS = 6  # halvings of the interval in which the verdict changes
BANDWIDTHS = EVERYWHERE, INSIDE, BETWEEN = "bandwidth", "bandwidth inside a node", "bandwidth between nodes"
LATENCY, SPEED, SEQUENCES, MEMORY = "latency", "speed of a device", "sequences per update", "memory of a device"


@dataclass(frozen=True)
class Change:
    """The smallest change of one quantity, up or down, after which a different mesh wins."""

    what: str
    factor: float
    winner: Plan
    value: str  # the quantity after the change

    def __str__(self) -> str:
        times = f"{self.factor:.1f} times as much" if self.factor > 1 else f"1/{1 / self.factor:.1f} of it"
        return f"{self.what}: with {times} ({self.value}), {self.winner.name}{_order(self.winner)} wins"


@dataclass(frozen=True)
class Sensitivity:
    """What would have to change for a different mesh, or order of its ranks, to win. `str` says so in a few lines."""

    work: Work
    network: Network
    memory: int | None
    candidates: tuple[Plan, ...]  # the best of each way, which are timed again after each change
    everything: tuple[Plan, ...]  # also those that need more memory
    gather_ahead: bool = True

    @property
    def winner(self) -> Plan:
        return self.winner_after(SPEED, 1.0)

    @property
    def quantities(self) -> list[str]:
        """What can change. On a single machine, or with one link between all ranks, there is one bandwidth."""
        links = BANDWIDTHS[:1] if self.network.inside == self.network.between else BANDWIDTHS[1:]
        return [*links, LATENCY, SPEED, SEQUENCES]

    @property
    def changes(self) -> list[Change]:
        """For each quantity, the smallest increase and the smallest decrease that change the verdict, if any do."""
        both = [(what, direction) for what in self.quantities for direction in (FARTHEST, 1 / FARTHEST)]
        found = [self._first_change(*each) for each in both]
        return [*filter(None, found), *self._of_memory()]

    def winner_after(self, what: str, factor: float) -> Plan:
        """Return the fastest plan that fits if one quantity is multiplied by `factor`."""
        timed = [plan for _, plan in self._timed(what, factor) if self.memory is None or plan.bytes <= self.memory]
        if not timed:
            raise CannotPlace(f"no plan fits with {factor:g} times the {what}")
        return min(timed, key=lambda plan: plan.seconds)

    def curves(self, what: str, most: int = 4) -> dict[str, list[tuple[float, float]]]:
        """Return milliseconds per update against the factor, for the meshes that win somewhere, and the runners-up."""
        factors = [FARTHEST ** (number / 8) for number in range(-8, 9)]
        lines: dict[str, list[tuple[float, float]]] = {}
        for factor in factors:
            best: dict[str, float] = {}
            for given, plan in self._timed(what, factor):
                if self.memory is None or plan.bytes <= self.memory:
                    name = f"{given.mesh}{_order(given)}"
                    best[name] = min(best.get(name, math.inf), 1000 * plan.seconds)
            for name, spent in best.items():
                lines.setdefault(name, []).append((factor, spent))
        best_ratio = {
            name: min(y / min(_at(line, x) for line in lines.values()) for x, y in lines[name]) for name in lines
        }
        return {name: lines[name] for name in sorted(lines, key=lambda name: best_ratio[name])[:most]}

    def _timed(self, what: str, factor: float) -> list[tuple[Plan, Plan]]:
        """Return each candidate, and the same plan after the change; too few sequences rule some of them out."""
        work, network = self.work, self.network
        if what in (SPEED, SEQUENCES):
            work = work.scaled(**{"speed" if what == SPEED else "sequences": factor})
        elif what in BANDWIDTHS or what == LATENCY:
            network = _changed(network, what, factor)
        else:
            raise ValueError(f"what={what!r}: choose {', '.join(self.quantities)}")
        return [
            (plan, timed_again(plan, work, network, self.gather_ahead))
            for plan in self.candidates
            if plan.ranks // plan.stages * plan.pieces.micro_batches <= work.sequences
        ]

    def _first_change(self, what: str, farthest: float) -> Change | None:
        """Return the first change on the way to `farthest`: double the factor until the verdict differs, then halve."""
        now, near, step = _mesh(self.winner), 1.0, 2.0 if farthest > 1 else 0.5
        far = step
        while self._mesh_after(what, far) == now:
            near, far = far, far * step
            if abs(math.log(far)) > abs(math.log(farthest)) + 1e-9:
                return None
        for _ in range(STEPS):
            middle = math.sqrt(near * far)
            near, far = (middle, far) if self._mesh_after(what, middle) == now else (near, middle)
        if self._mesh_after(what, far) is None:
            return None
        return Change(what, far, self.winner_after(what, far), self._value(what, far))

    def _mesh_after(self, what: str, factor: float) -> tuple[str, str] | None:
        """Return the mesh that wins after a change; None if no plan is left, with too few sequences."""
        try:
            return _mesh(self.winner_after(what, factor))
        except CannotPlace:
            return None

    def _value(self, what: str, factor: float) -> str:
        if what in BANDWIDTHS or what == LATENCY:
            network = _changed(self.network, what, factor)
            link = network.inside if what == INSIDE else network.between
            return f"{1e6 * link.latency:.0f} microseconds" if what == LATENCY else f"{link.bandwidth / 1e9:,.0f} GB/s"
        return (
            f"{factor:.2g} H200" if what == SPEED and "H200" in self.work.times.device else f"{self._count(factor):,}"
        )

    def _count(self, factor: float) -> int:
        return self.work.scaled(sequences=factor).sequences

    def _of_memory(self) -> list[Change]:
        """Return how much more memory would let a faster mesh fit, and how little would rule the winner's mesh out."""
        if self.memory is None:
            return []
        now, found = self.winner, []
        faster = [plan for plan in self.everything if plan.seconds < now.seconds and _mesh(plan) != _mesh(now)]
        if too_large := [plan for plan in faster if plan.bytes > self.memory]:
            found.append(min(too_large, key=lambda plan: plan.bytes))
        same = min(plan.bytes for plan in self.everything if _mesh(plan) == _mesh(now))
        if smaller := [plan for plan in self.everything if plan.bytes < same]:
            found.append(min(smaller, key=lambda plan: plan.seconds))
        sizes = [plan.bytes if plan.bytes > self.memory else same - 1 for plan in found]
        return [
            Change(MEMORY, size / self.memory, plan, f"{size / 1e9:,.0f} GB")
            for plan, size in zip(found, sizes, strict=True)
        ]

    def __str__(self) -> str:
        verdict = f"{self.winner.name}{_order(self.winner)} wins: {1000 * self.winner.seconds:.0f} ms per update."
        changes = self.changes
        stays = [what for what in self.quantities if what not in {change.what for change in changes}]
        lines = [verdict, "A different mesh would win if one thing changed:", *(f"  {change}" for change in changes)]
        kept = f"  no change of {' or '.join(stays)} up to {FARTHEST:g} times, up or down, would"
        return "\n".join([*lines, *([kept] if stays else [])])


def sensitivity(
    made: Sequence[Plan], work: Work, network: Network, *, memory: int | None = None, gather_ahead: bool = True
) -> Sensitivity:
    """Return what would have to change for a different mesh to win.

    `made` is what `plans` returned for this work and network, *without* a limit on memory: plans that are too large now
    may win with more.
    """
    fitting = [plan for plan in made if memory is None or plan.bytes <= memory]
    if not fitting:
        raise CannotPlace(f"no plan fits into {memory or 0:,} bytes: nothing wins, so nothing can change that")
    # The fastest of each way now, and those in most and in fewest pieces: after a change, they may be faster.
    candidates: dict[Plan, None] = {}
    for sign in (0, -1, 1):
        ranked = sorted(fitting, key=lambda plan: (sign * plan.pieces.micro_batches, plan.seconds))
        candidates |= dict.fromkeys(best_of_each_way(ranked))
    return Sensitivity(work, network, memory, tuple(candidates), tuple(made), gather_ahead)


def timed_again(plan: Plan, work: Work, network: Network, gather_ahead: bool = True) -> Plan:
    """Return the same plan for different work or a different network: the same mesh, schedule and placement."""
    if plan.sharding == FSDP:
        cut = plan.replicas, plan.shards, plan.pieces.micro_batches
        return sharded(work, *cut, network, plan.overhead, gather_ahead)
    width = plan.replicas * plan.shards
    return pipelined(work, width, plan.pieces, plan.placement, network, plan.inside, plan.overhead, plan.shards)


def _changed(network: Network, what: str, factor: float) -> Network:
    """Return the network with one quantity multiplied."""

    def change(link: Link, name: str) -> Link:
        if what == LATENCY:
            return Link(link.latency * factor, link.bandwidth)
        return Link(link.latency, link.bandwidth * factor) if what in (name, EVERYWHERE) else link

    return replace(network, inside=change(network.inside, INSIDE), between=change(network.between, BETWEEN))


def _mesh(plan: Plan) -> tuple[str, str]:
    return plan.mesh, plan.inside


def _order(plan: Plan) -> str:
    return f" ({plan.inside} inside)" if min(plan.ranks // plan.stages, plan.stages) > 1 else ""


def _at(line: Sequence[tuple[float, float]], x: float) -> float:
    return dict(line).get(x, math.inf)
