"""A program that starts its own processes: `mp.spawn` on every rank, with a group of their own."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, world_size, port, queue):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    total = torch.ones(1) * (rank + 1)
    dist.all_reduce(total)
    queue.put(total.item())
    dist.destroy_process_group()


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    if os.environ["RANK"] == "0":
        mp.spawn(worker, args=(2, port, queue), nprocs=2, join=True)
        return sorted(queue.get() for _ in range(2))
    return []


def check(values):
    assert values[0] == [3.0, 3.0]
