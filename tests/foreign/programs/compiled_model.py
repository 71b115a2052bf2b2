"""torch.compile around a model in DistributedDataParallel, and around a function with a collective in it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
    compiled = torch.compile(model, backend="aot_eager")
    compiled(torch.full((2, 4), float(dist.get_rank()))).sum().backward()

    @torch.compile(backend="eager")
    def doubled_sum(x):
        dist.all_reduce(x)
        return 2 * x

    return model.module[0].weight.grad.sum().item(), doubled_sum(torch.ones(1)).item()


def check(values):
    assert len({gradient for gradient, _ in values}) == 1
    assert all(total == 2.0 * len(values) for _, total in values)
