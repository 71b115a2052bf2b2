"""torch.distributed.rpc: a parameter server that the other ranks call."""

import os

import torch
from torch.distributed import rpc


class Server:
    def __init__(self):
        self.weight = torch.zeros(3)

    def add(self, gradient):
        self.weight += gradient
        return self.weight.clone()


def add_here(reference, gradient):
    return reference.local_value().add(gradient)


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    answer = None
    if rank == 0:
        server = rpc.remote("worker1", Server)
        for step in range(3):
            answer = rpc.rpc_sync("worker1", add_here, args=(server, torch.full((3,), float(step)))).tolist()
    rpc.shutdown()
    return answer


def check(values):
    assert values[0] == [3.0, 3.0, 3.0]
