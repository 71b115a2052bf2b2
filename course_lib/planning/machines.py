"""Nodes that one can buy or rent: the memory of a GPU, and the links inside a node and between nodes.

Bandwidths are the data sheets' peaks for one direction; a collective reaches less. Latencies are what NCCL's own cost
model counts for a step of a ring. Block times were measured on an H200. An H100 has the same peak in matrix
multiplications and slower memory. A B200 was not measured: `Work.scaled(speed=2)` asks what if it were twice as fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.planning.network import Link, Network

NVLINK_STEP, NETWORK_STEP = 3.4e-6, 9.6e-6  # seconds: a step of NCCL's ring with its protocol for large messages
LATENCY_SOURCE = "https://github.com/NVIDIA/nccl/blob/01afd20a77b5804e0ecf1042509dd9d20ebf9e93/src/graph/tuning.cc"


@dataclass(frozen=True)
class Machine:
    """A node with eight GPUs: bytes of memory of each, and its network."""

    name: str
    memory: int
    network: Network
    sources: tuple[str, ...]


def _node(name: str, gigabytes: int, nvlink: float, source: str) -> Machine:
    """Return a node of eight GPUs, each with an NVLink of that many GB/s each way, and a ConnectX-7 of 400 Gb/s."""
    network = Network(Link(NVLINK_STEP, nvlink * 1e9), Link(NETWORK_STEP, 50e9), per_node=8)
    return Machine(name, gigabytes * 10**9, network, (source, LATENCY_SOURCE))


MACHINES = {
    # 80 GB, NVLink 4 with 900 GB/s in both directions together, eight ConnectX-7
    "H100": _node("DGX H100", 80, 450, "https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html"),
    # 141 GB, and otherwise the same
    "H200": _node("DGX H200", 141, 450, "https://www.nvidia.com/en-us/data-center/dgx-h200/"),
    # 1,440 GB for eight GPUs, NVLink 5 with 1.8 TB/s in both directions together, eight ConnectX-7
    "B200": _node("DGX B200", 180, 900, "https://www.nvidia.com/en-us/data-center/dgx-b200/"),
}
