"""Every way in which ranks talk, as steps that know what the right answer is.

A step takes a `Turn`: which rank this is, of how many, and how it is to call. The generator of faults changes one
rank's turn; unchanged, every step returns True if the values that arrived are right.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


@dataclass
class Turn:
    """How one rank makes the call."""

    rank: int
    ranks: int
    size: int = 4
    dtype: torch.dtype = torch.float32
    root: int = 0
    group: dist.ProcessGroup | None = None

    def ones(self, size: int | None = None) -> torch.Tensor:
        return torch.ones(self.size if size is None else size, dtype=self.dtype)

    def mine(self) -> torch.Tensor:
        return torch.full((self.size,), self.rank + 1, dtype=self.dtype)

    @property
    def total(self) -> int:
        return self.ranks * (self.ranks + 1) // 2


def all_reduce(turn: Turn) -> bool:
    x = turn.mine()
    dist.all_reduce(x, group=turn.group)
    return bool((x == turn.total).all())


def all_reduce_later(turn: Turn) -> bool:
    x = turn.mine()
    dist.all_reduce(x, group=turn.group, async_op=True).wait()
    return bool((x == turn.total).all())


def functional_all_reduce(turn: Turn) -> bool:
    from torch.distributed._functional_collectives import all_reduce as reduced

    group = turn.group or dist.group.WORLD
    return bool((reduced(turn.mine(), "sum", group) == turn.total).all())


def broadcast(turn: Turn) -> bool:
    x = turn.mine()
    dist.broadcast(x, turn.root, group=turn.group)
    return bool((x == 1).all())


def reduce(turn: Turn) -> bool:
    x = turn.mine()
    dist.reduce(x, turn.root, group=turn.group)
    return turn.rank != 0 or bool((x == turn.total).all())


def all_gather(turn: Turn) -> bool:
    parts = [turn.ones() for _ in range(turn.ranks)]
    dist.all_gather(parts, turn.mine(), group=turn.group)
    return [int(part[0]) for part in parts] == list(range(1, turn.ranks + 1))


def all_gather_into_tensor(turn: Turn) -> bool:
    whole = turn.ones(turn.size * turn.ranks)
    dist.all_gather_into_tensor(whole, turn.mine(), group=turn.group)
    return int(whole.sum()) == turn.size * turn.total


def gather(turn: Turn) -> bool:
    parts = [turn.ones() for _ in range(turn.ranks)] if turn.rank == turn.root else None
    dist.gather(turn.mine(), parts, turn.root, group=turn.group)
    return parts is None or [int(part[0]) for part in parts] == list(range(1, turn.ranks + 1))


def scatter(turn: Turn) -> bool:
    parts = [turn.ones() * number for number in range(turn.ranks)] if turn.rank == turn.root else None
    x = turn.ones()
    dist.scatter(x, parts, turn.root, group=turn.group)
    return bool((x == turn.rank).all())


def reduce_scatter(turn: Turn) -> bool:
    x = turn.ones()
    dist.reduce_scatter(x, [turn.mine() for _ in range(turn.ranks)], group=turn.group)
    return bool((x == turn.total).all())


def all_to_all(turn: Turn) -> bool:
    received = turn.ones(turn.size * turn.ranks)
    dist.all_to_all_single(received, turn.mine().repeat(turn.ranks), group=turn.group)
    return int(received.sum()) == turn.size * turn.total


def uneven_all_to_all(turn: Turn) -> bool:
    """Rank r sends r + 1 numbers to each; a faulty one sends one more."""
    extra = turn.size - 4
    sends = [turn.rank + 1 + extra] * turn.ranks
    comes = [other + 1 for other in range(turn.ranks)]
    comes[turn.rank] += extra
    received = turn.ones(sum(comes))
    dist.all_to_all_single(received, turn.ones(sum(sends)), comes, sends, group=turn.group)
    return int(received.sum()) == turn.total


def barrier(turn: Turn) -> bool:
    dist.barrier(group=turn.group)
    return True


def objects_to_all(turn: Turn) -> bool:
    box = ["x" * 100 if turn.rank == turn.root else None]
    dist.broadcast_object_list(box, turn.root, group=turn.group)
    return box == ["x" * 100]


def objects_from_all(turn: Turn) -> bool:
    boxes = [None] * turn.ranks
    dist.all_gather_object(boxes, "x" * turn.rank, group=turn.group)
    return boxes == ["x" * rank for rank in range(turn.ranks)]


def objects_to_one(turn: Turn) -> bool:
    boxes = [None] * turn.ranks if turn.rank == turn.root else None
    dist.gather_object("y" * turn.rank, boxes, turn.root, group=turn.group)
    return boxes is None or boxes == ["y" * rank for rank in range(turn.ranks)]


def objects_dealt(turn: Turn) -> bool:
    box, boxes = [None], list(range(turn.ranks)) if turn.rank == turn.root else [None] * turn.ranks
    dist.scatter_object_list(box, boxes, turn.root, group=turn.group)
    return box == [turn.rank]


def ring(turn: Turn) -> bool:
    """Every rank sends to the next and receives from the one before; rank 0 sends first."""
    x = turn.ones()
    after, before = (turn.rank + 1) % turn.ranks, (turn.rank - 1) % turn.ranks
    if turn.rank == 0:
        dist.send(turn.mine(), after)
        dist.recv(x, before)
    else:
        dist.recv(x, before)
        dist.send(turn.mine(), after)
    return bool((x == before + 1).all())


def exchange(turn: Turn) -> bool:
    x = turn.ones()
    after, before = (turn.rank + 1) % turn.ranks, (turn.rank - 1) % turn.ranks
    pair = [dist.P2POp(dist.isend, turn.mine(), after), dist.P2POp(dist.irecv, x, before)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    return bool((x == before + 1).all())


def data_parallel(turn: Turn) -> bool:
    torch.manual_seed(turn.rank)
    model = nn.parallel.DistributedDataParallel(nn.Linear(turn.size, 1).to(turn.dtype), process_group=turn.group)
    model(turn.ones()[None]).sum().backward()
    gradient = model.module.weight.grad
    return gradient is not None and bool((gradient == 1).all())


# Those whose call one rank can get wrong in every way. `root`: has one; `shape`, `dtype`: must agree on it.
BREAKABLE: dict[Callable[[Turn], bool], set[str]] = {
    all_reduce: {"shape", "dtype", "group"},
    all_reduce_later: {"shape", "dtype", "group"},
    functional_all_reduce: {"shape", "dtype", "group"},
    broadcast: {"shape", "dtype", "root", "group"},
    reduce: {"shape", "dtype", "root", "group"},
    all_gather: {"shape", "dtype", "group"},
    all_gather_into_tensor: {"shape", "dtype", "group"},
    gather: {"shape", "dtype", "root", "group"},
    scatter: {"root", "group"},
    reduce_scatter: {"shape", "dtype", "group"},
    all_to_all: {"group"},
    uneven_all_to_all: {"shape"},
    barrier: {"group"},
    objects_to_all: {"root", "group"},
    objects_from_all: {"group"},
    objects_to_one: {"root", "group"},
    objects_dealt: {"root", "group"},
    ring: {"shape", "dtype"},
    exchange: {"shape", "dtype"},
    data_parallel: {"shape", "dtype"},
}


def coalesced(turn: Turn) -> bool:
    tensors = [turn.mine(), turn.mine()]
    dist.all_reduce_coalesced(tensors)
    return all(bool((x == turn.total).all()) for x in tensors)


def uneven_parts_to_each(turn: Turn) -> bool:
    """An all-to-all in which every pair exchanges another amount, and some nothing."""
    sends = [(turn.rank + other) % 3 for other in range(turn.ranks)]
    received = turn.ones(sum(sends))
    dist.all_to_all_single(received, turn.mine()[:1].repeat(sum(sends)), sends, sends)
    return int(received.sum()) == sum((other + 1) * amount for other, amount in enumerate(sends))


def groups_in_another_order(turn: Turn) -> bool:
    """Ranks of disjoint pairs use their groups in orders of their own."""
    half = turn.ranks // 2
    low, high = dist.new_group(list(range(half))), dist.new_group(list(range(half, turn.ranks)))
    mine, members = (low, half) if turn.rank < half else (high, turn.ranks - half)
    for size in (3, 5) if turn.rank < half else (5, 2, 3):
        x = turn.ones(size)
        dist.all_reduce(x, group=mine)
        if not (x == members).all():
            return False
    return True


def redistributed(turn: Turn) -> bool:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (turn.ranks,))
    x = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])  # uneven
    return x.redistribute(mesh, [Replicate()]).to_local().tolist() == list(map(float, range(7)))


def compressed_by_a_hook(turn: Turn) -> bool:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    model(torch.ones(1, 4)).sum().backward()
    return bool((model.module.weight.grad == 1).all())


def uneven_inputs_joined(turn: Turn) -> bool:
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    with model.join():
        for _ in range(1 + turn.rank):
            model(torch.ones(1, 4)).sum().backward()
    return True


def optimizer_state_sharded(turn: Turn) -> bool:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    parts = [torch.zeros_like(weights) for _ in range(turn.ranks)]
    dist.all_gather(parts, weights)
    return all(torch.equal(part, weights) for part in parts)


def checkpoint_in_the_background(turn: Turn) -> bool:
    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp() if turn.rank == 0 else None]
    dist.broadcast_object_list(folder)
    group = dist.new_group(backend="gloo")
    place = os.path.join(str(folder[0]), "c")
    saving = dcp.async_save({"x": torch.arange(4.0)}, checkpoint_id=place, process_group=group)
    x = turn.mine()
    dist.all_reduce(x)  # while it is written
    saving.result()
    state = {"x": torch.zeros(4)}
    dcp.load(state, checkpoint_id=place)
    return state["x"].tolist() == [0, 1, 2, 3] and bool((x == turn.total).all())


def _pipelined(turn: Turn, name: str) -> bool:
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage

    torch.manual_seed(0)
    count = 2 * turn.ranks
    layers = [nn.Linear(4, 4) for _ in range(count)]
    x, y = torch.randn(2 * count, 4), torch.randn(2 * count, 4)
    whole = nn.functional.mse_loss(nn.Sequential(*layers)(x), y).item()
    mine = [turn.rank, turn.rank + turn.ranks]
    if name == "ScheduleZBVZeroBubble":
        mine = [turn.rank, count - 1 - turn.rank]
    stages = [PipelineStage(layers[index], index, count, torch.device("cpu")) for index in mine]
    schedule = getattr(pipelining, name, None) or getattr(pipelining.schedules, name)
    plan = schedule(stages, n_microbatches=count, loss_fn=nn.functional.mse_loss)
    losses: list[torch.Tensor] = []
    first, last = 0 in mine, count - 1 in mine
    plan.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))
    return not last or abs(torch.stack(losses).mean().item() - whole) < 1e-5


def interleaved_pipeline(turn: Turn) -> bool:
    return _pipelined(turn, "ScheduleInterleaved1F1B")


def zero_bubble_pipeline(turn: Turn) -> bool:
    return _pipelined(turn, "ScheduleInterleavedZeroBubble")


def zero_bubble_v_pipeline(turn: Turn) -> bool:
    if torch.__version__ < "2.12":  # it sends to itself there, which gloo cannot
        return True
    return _pipelined(turn, "ScheduleZBVZeroBubble")


def fully_sharded(turn: Turn) -> bool:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    lstm = nn.LSTM(4, 5)
    fully_shard(lstm, mesh=init_device_mesh("cpu", (turn.ranks,)))
    lstm(torch.ones(3, 2, 4))[0].sum().backward()
    return all(p.grad is not None for p in lstm.parameters())


def watched_barrier(turn: Turn) -> bool:
    dist.monitored_barrier()
    return True


def messages_with_tags(turn: Turn) -> bool:
    """Two messages that are received in the other order than they are sent, told apart by their tags."""
    if turn.rank == 0:
        works = [dist.isend(torch.full((2,), 1.0), 1, tag=1), dist.isend(torch.full((3,), 2.0), 1, tag=2)]
        for work in works:
            work.wait()
    if turn.rank == 1:
        first, second = torch.zeros(3), torch.zeros(2)
        dist.recv(first, 0, tag=2)
        dist.recv(second, 0, tag=1)
        return first.tolist() == [2.0] * 3 and second.tolist() == [1.0] * 2
    return True


def from_whoever_comes(turn: Turn) -> bool:
    if turn.rank == 0:
        senders = set()
        for _ in range(turn.ranks - 1):
            x = turn.ones()
            senders.add(dist.recv(x))
        return senders == set(range(1, turn.ranks))
    dist.send(turn.mine(), 0)
    return True


def one_rank_comes_late(turn: Turn) -> bool:
    import time

    if turn.rank == turn.ranks - 1:
        time.sleep(1.5)
    return all_reduce(turn)


def returns_before_the_others(turn: Turn) -> bool:
    """Rank 0 is done while the others still talk among themselves."""
    import time

    others = dist.new_group(list(range(1, turn.ranks)))
    if turn.rank == 0:
        return True
    for _ in range(3):
        time.sleep(0.5)
        dist.all_reduce(torch.ones(200_000), group=others)
    return True


HARMLESS = [
    *BREAKABLE,
    *(coalesced, uneven_parts_to_each, groups_in_another_order, redistributed, compressed_by_a_hook),
    *(uneven_inputs_joined, optimizer_state_sharded, checkpoint_in_the_background, interleaved_pipeline),
    *(zero_bubble_pipeline, zero_bubble_v_pipeline, fully_sharded, watched_barrier, messages_with_tags),
    *(from_whoever_comes, one_rank_comes_late, returns_before_the_others),
]
