"""Threads on a rank: one receives in the background while the main thread computes, another calls a collective."""

import threading

import torch
import torch.distributed as dist


def main():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group, box = dist.new_group(), torch.zeros(3)
    receiver = threading.Thread(target=dist.recv, args=(box, (rank - 1) % ranks))
    receiver.start()
    total = torch.ones(1)
    reducer = threading.Thread(target=dist.all_reduce, args=(total,), kwargs={"group": group})
    reducer.start()
    dist.send(torch.full((3,), float(rank)), (rank + 1) % ranks)
    receiver.join()
    reducer.join()
    return box[0].item(), total.item()


def check(values):
    size = len(values)
    assert values == [((rank - 1) % size, size) for rank in range(size)]
