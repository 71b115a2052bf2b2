"""Machines with several GPUs: which links the rows and the columns of a mesh use, and what a sum over them costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.planning.network import Link

INSIDE = ("stages", "replicas")  # which of the two are neighbouring ranks


@dataclass(frozen=True)
class Network:
    """GPUs in nodes: a fast link inside a node, a slower one between nodes. Ranks fill one node after another.

    Every GPU has both links to itself: what one of them sends does not slow down its neighbours. Where all-reduces were
    measured too, `collective` is the link that explains them.
    """

    inside: Link
    between: Link
    per_node: int
    collective: Link | None = None

    @classmethod
    def flat(cls, link: Link, collective: Link | None = None) -> Network:
        """One link for all, as on a single machine."""
        return cls(link, link, 1, collective)

    def orders(self, replicas: int, stages: int) -> tuple[str, ...]:
        """The orders of a mesh that differ here: whether a replica's stages or a stage's replicas are neighbours."""
        same = min(replicas, stages) == 1 or replicas * stages <= self.per_node or self.inside == self.between
        return INSIDE[:1] if same else INSIDE

    def between_stages(self, replicas: int, stages: int, inside: str) -> Link:
        """The slowest link from a stage to the next."""
        if replicas * stages <= self.per_node:
            return self.inside
        in_one_node = inside == "stages" and self.per_node % stages == 0
        return self.inside if in_one_node else self.between

    def replicas_per_node(self, replicas: int, stages: int, inside: str) -> int:
        """How many of the ranks that hold the same stage are in one node."""
        if replicas * stages <= self.per_node:
            return replicas
        return min(replicas, self.per_node if inside == "replicas" else max(1, self.per_node // stages))

    def all_reduce_seconds(self, size: float, ranks: int, per_node: int) -> float:
        """A sum over so many ranks, so many of them in each node."""
        if self.collective:
            return self.collective.all_reduce_seconds(size, ranks)
        return 2 * self._one_way(size, ranks, per_node)

    def gather_seconds(self, size: float, ranks: int, per_node: int) -> float:
        """To gather `size` bytes of which each rank has a piece, or to sum them and leave each rank its piece.

        That is half of an all-reduce, which does one after the other.
        """
        return self.all_reduce_seconds(size, ranks, per_node) / 2

    def _one_way(self, size: float, ranks: int, per_node: int) -> float:
        """First inside the nodes, until each rank has its piece; then each GPU's piece goes from node to node."""
        inside = _pieces_round(self.inside, size, min(ranks, per_node))
        return inside + _pieces_round(self.between, size / per_node, math.ceil(ranks / per_node))


def _pieces_round(link: Link, size: float, ranks: int) -> float:
    """Every rank's piece to every other: round a ring, or through a tree, which has fewer messages in a row."""
    if ranks < 2:
        return 0.0
    ring = (ranks - 1) * link.seconds(size / ranks)
    tree = math.ceil(math.log2(ranks)) * link.latency + size / link.bandwidth
    return min(ring, tree)
