"""Writing distributed applications by hand: blocking and immediate messages, groups, a ring all-reduce."""

import os

import torch
import torch.distributed as dist


def run_blocking(rank, size):
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor=tensor, dst=1)
    elif rank == 1:
        dist.recv(tensor=tensor, src=0)
    return tensor.item()


def run_immediate(rank, size):
    tensor, request = torch.zeros(1), None
    if rank == 0:
        tensor += 2
        request = dist.isend(tensor=tensor, dst=1)
    elif rank == 1:
        request = dist.irecv(tensor=tensor, src=0)
    if request is not None:
        request.wait()
    return tensor.item()


def run_group(rank, size):
    group, tensor = dist.new_group([0, 1]), torch.ones(1)
    if rank < 2:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
    return tensor.item()


def ring_allreduce(rank, size):
    send, received = torch.full((4,), float(rank)), torch.zeros(4)
    total = send.clone()
    for _ in range(size - 1):
        request = dist.isend(send, (rank + 1) % size)
        dist.recv(received, (rank - 1) % size)
        total += received
        request.wait()
        send = received.clone()
    return total[0].item()


def init_process(rank, size, fn, backend="gloo"):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "29500"
    dist.init_process_group(backend, rank=rank, world_size=size)
    value = fn(rank, size)
    dist.destroy_process_group()
    return value


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return [init_process(rank, size, fn) for fn in (run_blocking, run_immediate, run_group, ring_allreduce)]


def check(values):
    size = len(values)
    for rank, (blocking, immediate, group, ring) in enumerate(values):
        assert (blocking, immediate) == ((1.0, 2.0) if rank < 2 else (0.0, 0.0))
        assert group == (2.0 if rank < 2 else 1.0)
        assert ring == sum(range(size))
