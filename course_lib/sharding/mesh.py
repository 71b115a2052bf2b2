"""The mesh of ranks: replicas, and the stages or shards of each."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from course_lib.runtime.machine import device


def mesh_of(replicas: int, column: str = "stage", inside: str = "", shards: int = 1) -> DeviceMesh:
    """Return a mesh of all ranks: a row per replica, a column per stage or per shard.

    Ranks are numbered along the rows, or with `inside="replicas"` down the columns, so that replicas are neighbors.
    With `shards`, a replica has one row per shard, and the mesh has three dimensions. Shards are closer than replicas.
    """
    ranks, requested = dist.get_world_size(), f"replicas={replicas}" + f" shards={shards}" * (shards != 1)
    if replicas < 1 or shards < 1 or ranks % (replicas * shards):
        fitting = [number for number in range(1, ranks + 1) if ranks % number == 0]
        product, which = ("replicas x shards", "a product") if shards != 1 else ("replicas", "one")
        raise ValueError(f"{requested} on {ranks} ranks: {product} x {column}s = ranks, so choose {which} of {fitting}")
    if inside not in ("", f"{column}s", "replicas"):
        raise ValueError(f"inside={inside!r}: choose {column}s or replicas")
    shape = {"replica": replicas, "shard": shards, column: ranks // (replicas * shards)}
    rows = ("replica", "shard") if shards > 1 else ("replica",)
    names = (column, *rows) if inside == "replicas" else (*rows, column)
    return init_device_mesh(device().type, tuple(shape[name] for name in names), mesh_dim_names=names)
