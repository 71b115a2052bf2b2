"""Tensor parallelism by DTensor: a column-wise and a row-wise layer, and a redistribution."""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def main():
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    torch.manual_seed(0)
    model, x = MLP(), torch.randn(5, 8)
    alone = model(x).sum().item()
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    together = model(x).sum()
    together.backward()
    rows = distribute_tensor(torch.arange(12.0).view(6, 2), mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1) if mesh.size() <= 2 else Replicate()])
    return alone, together.item(), columns.full_tensor().sum().item()


def check(values):
    for alone, together, total in values:
        assert abs(alone - together) < 1e-4
        assert total == 66.0
