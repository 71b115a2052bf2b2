"""Several GPUs in each machine: which links a mesh's rows and columns use, and what an all-reduce costs there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.messages.link import Link


@dataclass(frozen=True)
class Network:
    """GPUs in nodes, each with its own link inside the node and between nodes. Ranks fill one node after another."""

    inside: Link
    between: Link
    per_node: int

    @classmethod
    def flat(cls, link: Link) -> Network:
        """Return a network with the same link between all ranks, as on a single machine."""
        return cls(link, link, 1)

    def orders(self, replicas: int, stages: int) -> tuple[str, ...]:
        """Return the rank orders that differ here: neighbors are a replica's stages, or a stage's replicas."""
        is_same = min(replicas, stages) == 1 or replicas * stages <= self.per_node or self.inside == self.between
        return ("stages",) if is_same else ("stages", "replicas")

    def between_stages(self, replicas: int, stages: int, inside: str) -> Link:
        """Return the slowest link between two consecutive stages."""
        if replicas * stages <= self.per_node:
            return self.inside
        in_one_node = inside == "stages" and self.per_node % stages == 0
        return self.inside if in_one_node else self.between

    def replicas_per_node(self, replicas: int, stages: int, inside: str) -> int:
        """Return how many of the ranks that hold the same stage share a node."""
        if replicas * stages <= self.per_node:
            return replicas
        return min(replicas, self.per_node if inside == "replicas" else max(1, self.per_node // stages))

    def all_reduce_seconds(self, size: float, ranks: int, per_node: int) -> float:
        """Return how long an all-reduce takes: a reduce-scatter followed by an all-gather."""
        return 2 * self.gather_seconds(size, ranks, per_node)

    def gather_seconds(self, size: float, ranks: int, per_node: int) -> float:
        """Return how long an all-gather of `size` bytes, or a reduce-scatter, takes with `per_node` ranks in a node."""
        # It runs inside the nodes, until each rank has its piece, then for each piece between the nodes.
        inside = self.inside.gather_seconds(size, min(ranks, per_node))
        return inside + self.between.gather_seconds(size / per_node, math.ceil(ranks / per_node))
