"""A plan is a mesh, an order of its ranks, and a schedule, with the predicted time and memory of an update.

`explain` says why one plan is faster than another: it shows side by side where each spends the time of an update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from course_lib.planning.placement import Placement
from course_lib.planning.schedule import Schedule
from course_lib.planning.simulation import ActionCosts
from course_lib.planning.work import Pieces

# What the time of an update is spent on. `Plan.parts` leaves out the parts that take no time.
PARTS = (
    "computing",
    "recomputing",
    "starting actions",
    "bubble",
    "messages",
    "gathering weights",
    "summing gradients",
    "updating weights",
)


@dataclass(frozen=True)
class Plan:
    """A mesh of replicas x stages, or replicas x shards, and the predicted time of a step on the slowest rank.

    `costs` are the costs of one action, without the `overhead` of starting it. All-reduces and gathers count only where
    computation does not hide them (`planner.py`), for replicas and shards alike.
    """

    replicas: int
    pieces: Pieces
    placement: Placement  # maps blocks to positions: stages, or virtual stages
    costs: ActionCosts
    overhead: float
    pipeline_seconds: float  # from the first action to the last
    exposed_seconds: float  # all-reduces and gathers that the pipeline does not hide
    update_seconds: float  # the optimizer step
    bytes: int  # on the fullest rank
    inside: str = "stages"  # which ranks are neighbors: a replica's stages, or a stage's replicas
    shards: int = 1

    @property
    def stages(self) -> int:
        return self.pieces.stages

    @property
    def ranks(self) -> int:
        return self.replicas * self.stages * self.shards

    @property
    def schedule(self) -> Schedule:
        return self.pieces.prepared.schedule

    @property
    def seconds(self) -> float:
        """The predicted seconds of one update."""
        return self.pipeline_seconds + self.exposed_seconds + self.update_seconds

    @property
    def mesh(self) -> str:
        """The mesh as text: `8 x 2`, or `2 x 8 sharded`."""
        return f"{self.replicas} x {self.shards} sharded" if self.shards > 1 else f"{self.replicas} x {self.stages}"

    @property
    def way(self) -> tuple[Any, ...]:
        """The mesh and its rank order: plans that agree on them differ only in schedule and number of pieces."""
        return self.replicas, self.stages, self.shards, self.inside

    @cached_property
    def parts(self) -> dict[str, float]:
        """The seconds of a step by what they are spent on; they add up to `seconds`."""
        prepared, costs = self.pieces.prepared, self.costs.with_overhead(self.overhead)
        whole = prepared.busy(costs)
        busiest = max(range(self.stages), key=whole.__getitem__)
        again, actions = prepared.busy(self.costs, "R")[busiest], len(self.schedule.stages[busiest])
        without_links = max(end for _, end in prepared.stopwatch.times(replace(costs, link=0.0)))
        spent = {
            "computing": whole[busiest] - again - actions * self.overhead,
            "recomputing": again,
            "starting actions": actions * self.overhead,
            "bubble": without_links - whole[busiest],
            "messages": self.pipeline_seconds - without_links,
            "gathering weights" if self.shards > 1 else "summing gradients": self.exposed_seconds,
            "updating weights": self.update_seconds,
        }
        return {name: spent[name] for name in PARTS if spent.get(name, 0.0) > 1e-12}

    def price(self, updates: int, per_hour: float) -> float:
        """Return the price of `updates` updates if each rank's GPU costs `per_hour`, busy or idle."""
        return self.ranks * per_hour * updates * self.seconds / 3600

    @property
    def strategy(self) -> tuple[str, dict[str, Any]]:
        """The name and options of the strategy that runs this plan, as `course train` takes them."""
        if self.shards > 1:
            return "fsdp", {"replicas": self.replicas, "micro_batches": self.pieces.micro_batches}
        options = {"replicas": self.replicas, "inside": self.inside, "schedule": self.pieces.name}
        options |= {"micro_batches": self.pieces.micro_batches, "chunks": self.pieces.chunks}
        return "hybrid", {**options, "recompute": self.pieces.recompute, "placement": self.placement}

    def __str__(self) -> str:
        apart = f" ({self.inside} inside)" if min(self.replicas, self.stages) > 1 else ""
        size = f"{self.bytes / 2**30:,.1f} GiB" if self.bytes >= 2**30 else f"{self.bytes / 2**20:,.1f} MiB"
        return f"{self.mesh}{apart}, {self.pieces}: {self.seconds * 1000:.1f} ms, {size} per rank"


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
        said = f"{self.winner.mesh} is ahead of {self.runner_up.mesh} by {ahead * 1000:.1f} ms "
        said += f"({ahead / self.runner_up.seconds:.1%}). It saves {' and '.join(saved[:2]) or 'nothing worth a line'}"
        return said + (f", and pays {' and '.join(paid[:2])} for it." if paid else ".")

    def __str__(self) -> str:
        both = (self.winner, self.runner_up)
        names = [f"{plan.mesh}, {plan.pieces}" for plan in both]
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
