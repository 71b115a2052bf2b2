"""Measure what `model_parallel.sharded_memory` and a `Plan` predict: the bytes on a rank, and the time of an update.

`plan_seconds` runs a plan for large GPUs on the ranks of this machine: a small twin of the model whose blocks, messages
and sums are slowed down to the planned times. The order of work, the waiting and the overlap are real.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.core.batch import Batch, pad
from course_lib.core.model import Loss, SequenceModel, cross_entropy, lstm_model
from course_lib.core.pacing import pace_blocks
from course_lib.core.strategy import Strategy
from course_lib.data_parallel.ddp import DDP
from course_lib.data_parallel.network import paced_network
from course_lib.launcher.notebook.launch import launch
from course_lib.messages.link import Link
from course_lib.model_parallel.sharded_memory import WAYS, ShardedMemory
from course_lib.model_parallel.work import Work
from course_lib.one_device.measurement import local_bytes
from course_lib.pipeline.simulation import ActionCosts
from course_lib.sharding.fsdp import FSDP, GatherPace, GatherWatch
from course_lib.sharding.hybrid import Hybrid
from course_lib.sharding.plan import FSDP as FULLY_SHARDED
from course_lib.sharding.plan import Plan


def make_sharded(
    model: SequenceModel, loss: Loss, way: str, *, replicas: int = 1, learning_rate: float = 0.01
) -> Strategy:
    """Return the strategy for `ddp`, `zero-1`, `zero-2` or `zero-3`, with Adam. Only the last two support replicas."""
    if way not in WAYS:
        raise ValueError(f"way={way!r}: choose {', '.join(WAYS)}")
    adam = partial(torch.optim.Adam, lr=learning_rate)
    if way == "ddp":
        return DDP(model, adam, loss)
    if way == "zero-1":
        from torch.distributed.optim import ZeroRedundancyOptimizer  # a slow import

        return DDP(model, partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.Adam, lr=learning_rate), loss)
    return FSDP(model, adam, loss, replicas=replicas, reshard_after_forward=way == "zero-3")


def measure_sharding(strategy: Strategy, batch: Batch) -> ShardedMemory:
    """Run one update on this rank's `batch`, and return the bytes of its tensors on this rank.

    This leaves out the optimizer's step count, one number per parameter, and the buckets in which
    DistributedDataParallel keeps a second copy of the gradients.
    """
    watch = GatherWatch(strategy) if isinstance(strategy, FSDP) and strategy.mesh["shard"].size() > 1 else None
    strategy.step(batch)
    parameters = [shard.tensor for shard in strategy.shards().values()]
    optimizer = getattr(strategy.optimizer, "optim", strategy.optimizer)  # a ZeroRedundancyOptimizer wraps one
    values = [value for slots in optimizer.state.values() for value in slots.values()]
    return ShardedMemory(
        parameters=local_bytes(parameters),
        gradients=local_bytes(parameter.grad for parameter in parameters if parameter.grad is not None),
        optimizer=local_bytes(value for value in values if isinstance(value, Tensor) and value.dim()),
        passing=watch.passing.peak if watch else 0,
    )


sgd = partial(torch.optim.SGD, lr=0.01)


@dataclass(frozen=True)
class Twin:
    """A text model with the same blocks as the planned one, so small that its compute time is negligible."""

    work: Work
    hidden: int = 32

    @property
    def vocabulary(self) -> int:
        """The vocabulary for which embedding and head are as large, relative to a layer, as in the planned model."""
        embedding = self.work.blocks[0]
        return max(2, round(embedding.inputs * (self.hidden + 1) / (embedding.width + 1)))

    def model(self) -> SequenceModel:
        return lstm_model(vocabulary=self.vocabulary, hidden=self.hidden, layers=len(self.work.blocks) - 2)

    def batch(self, chunks: int) -> Batch:
        """Return a batch with the planned number of sequences, and as few steps as possible."""
        steps = max(2, chunks)
        texts = torch.randint(0, self.vocabulary, (self.work.sequences, steps + 1))
        return pad([text[:-1] for text in texts], [text[1:] for text in texts])

    def link(self, planned: Link) -> Link:
        """Return a link on which the twin's blocks take as long as the planned model's blocks take on `planned`."""
        bytes_here = sum(weight.numel() * 4 for weight in dict(self.model().numbered())[1].parameters())
        return Link(planned.latency, planned.bandwidth * bytes_here / self.work.memory[1].parameters)


def plan_seconds(plan: Plan, work: Work, link: Link, updates: int = 3) -> float:
    """Run this plan, paced, on as many real ranks as it has. Returns the median seconds of updates after the first."""
    run = launch(_paced_updates, plan, work, link, updates, ranks=plan.ranks, timeout=300)
    return statistics.median(max(times) for times in zip(*run, strict=True))


def _paced_updates(plan: Plan, work: Work, link: Link, updates: int) -> list[float]:
    """Run the plan on its twin, with every block, message and sum paced; return the seconds of updates."""
    twin, (_, options) = Twin(work), plan.strategy
    model, batch = twin.model(), twin.batch(plan.pieces.chunks)
    if plan.sharding == FULLY_SHARDED:
        strategy = FSDP(model, sgd, cross_entropy, **options)
        # It paces the collectives, too, block by block: by the planned bytes, so over the planned link.
        GatherWatch(strategy, gather_paces(plan, work, link))
        return update_times(strategy, batch, updates, plan.update_seconds)
    pace = plan.costs
    if not plan.schedule.split:  # otherwise weight gradients are computed separately, so whole actions are paced
        blocks = work.block_seconds(plan.replicas * plan.shards * plan.schedule.micro_batches, plan.schedule.chunks)
        pace_blocks(model, {place: (block.forward, block.backward) for place, block in enumerate(blocks)})
        pace = ActionCosts(0.0, 0.0, plan.costs.link)
    with paced_network(twin.link(link)):
        strategy = Hybrid(model, sgd, cross_entropy, pace=pace, **options)
        return update_times(strategy, batch, updates, plan.update_seconds)


def update_times(strategy: Strategy, batch: Batch, updates: int, update_seconds: float = 0.0) -> list[float]:
    """Return the seconds of updates after the first; the weights' update sleeps for `update_seconds`."""
    share, times = strategy.share(batch), []
    for _ in range(updates + 1):
        dist.barrier()
        started_at = time.monotonic()
        strategy.step(share)
        time.sleep(update_seconds)
        times.append(time.monotonic() - started_at)
    return times[1:]


def gather_paces(plan: Plan, work: Work, link: Link) -> dict[int, GatherPace]:
    """Return each block's times in a sharded plan. A reduce-scatter's time includes the replicas' sum of the shard."""
    paces = {}
    for place, block in enumerate(work.block_seconds(plan.ranks * plan.schedule.micro_batches, plan.schedule.chunks)):
        size = work.memory[place].parameters
        gather = link.all_reduce_seconds(work.gathered(place), plan.shards) / 2
        scatter = link.all_reduce_seconds(size, plan.shards) / 2
        across = link.all_reduce_seconds(size / plan.shards, plan.replicas)
        paces[place] = GatherPace(gather, block.forward, block.backward, scatter + across)
    return paces
