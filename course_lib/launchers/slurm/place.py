"""What a job asks of a Slurm cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CORES_BESIDE_A_GPU = 4  # one for the rank, the others to feed it


class BadPlace(ValueError):
    """A place that cannot run the ranks; the sentence says what to change."""


@dataclass(frozen=True)
class Place:
    """So many ranks on each of so many nodes, and what they need."""

    nodes: int = 2
    gpus_per_node: int = 8
    ranks_per_node: int | None = None  # None: one for each GPU
    cpus_per_rank: int | None = None  # None: 4 beside a GPU, otherwise 1
    memory: str | None = None  # of a node, like "64G"; None: what the cluster gives
    time: str = "1:00:00"
    partition: str | None = None
    account: str | None = None
    folder: str = "slurm"
    options: Sequence[str] = ()
    peer_timeout: float | None = None  # seconds a rank waits for another; None: as long as PyTorch does
    command: Sequence[str] = ()  # words of `course` that a node runs, if it is not a function that is sent there

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise BadPlace(f"nodes={self.nodes}: a job needs at least one node")
        if self.gpus_per_node < 0:
            raise BadPlace(f"gpus_per_node={self.gpus_per_node}: give 0 or more")
        if self.cores < 1:
            raise BadPlace(f"cpus_per_rank={self.cpus_per_rank}: give 1 or more")
        if self.local_ranks < 1:
            raise BadPlace(
                f"gpus_per_node={self.gpus_per_node} and ranks_per_node={self.ranks_per_node}: "
                "give ranks_per_node, 1 or more"
            )

    @property
    def local_ranks(self) -> int:
        """How many ranks a node has."""
        return self.gpus_per_node if self.ranks_per_node is None else self.ranks_per_node

    @property
    def cores(self) -> int:
        """How many cores a rank has."""
        default = CORES_BESIDE_A_GPU if self.gpus_per_node else 1
        return default if self.cpus_per_rank is None else self.cpus_per_rank

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return self.nodes * self.local_ranks

    def check(self, ranks: int) -> None:
        """Refuse another number of ranks than fits the nodes."""
        if ranks != self.ranks:
            raise BadPlace(
                f"ranks={ranks}: {self.nodes} nodes with {self.local_ranks} ranks each are {self.ranks} ranks; "
                "change ranks, nodes or ranks_per_node"
            )
