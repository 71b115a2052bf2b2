"""Run a plan for large GPUs on the ranks at hand: a small twin of the model, at the pace that the plan expects.

Blocks sleep for the planned block times, and messages and sums take the planned link times; the order of work, the
waiting and the overlap are real. So you can see whether an update takes as long as predicted.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from course_lib.data import Batch, pad
from course_lib.launchers import launch
from course_lib.lstm import SequenceModel, cross_entropy, lstm_model, pace_blocks
from course_lib.planning import ActionCosts, Link, Plan, Schedule, Work, paced_network
from course_lib.strategies import FSDP, Hybrid, Strategy
from course_lib.strategies.fsdp_watch import GatherPace, GatherWatch

sgd = partial(torch.optim.SGD, lr=0.01)


@dataclass(frozen=True)
class Twin:
    """A text model with the same blocks as the planned one, so small that its compute time is negligible."""

    work: Work
    hidden: int = 32
    vocabulary: int = 64

    def model(self) -> SequenceModel:
        return lstm_model(vocabulary=self.vocabulary, hidden=self.hidden, layers=len(self.work.blocks) - 2)

    def batch(self, chunks: int) -> Batch:
        """Return a batch with the planned number of sequences, and as few steps as possible."""
        steps = max(2, chunks)
        texts = torch.randint(0, self.vocabulary, (self.work.sequences, steps + 1))
        return pad([text[:-1] for text in texts], [text[1:] for text in texts])

    def link(self, planned: Link) -> Link:
        """Return a link on which the twin's layers take as long as the planned layers on theirs."""
        bytes_here = sum(weight.numel() * 4 for weight in dict(self.model().numbered())[1].parameters())
        return Link(planned.latency, planned.bandwidth * bytes_here / self.work.memory[1].parameters)


def plan_seconds(plan: Plan, work: Work, link: Link, updates: int = 3, twin: Twin | None = None) -> float:
    """Return the seconds of a paced update with this plan, on as many real ranks: the median, without the first."""
    small = twin or Twin(work)
    run = launch(_time_updates, plan, small, link, updates, ranks=plan.ranks, timeout=300)
    return statistics.median(max(times) for times in zip(*run, strict=True))


def unpaced_seconds(schedule: Schedule, work: Work, updates: int = 3) -> float:
    """Return the seconds of an unpaced update of the twin: the cost of messages and Python, with nothing to compute."""
    run = launch(_time_unpaced, schedule, Twin(work), updates, ranks=len(schedule.stages), timeout=300)
    return statistics.median(max(times) for times in zip(*run, strict=True))


def _time_unpaced(schedule: Schedule, twin: Twin, updates: int) -> list[float]:
    strategy = Hybrid(twin.model(), sgd, cross_entropy, replicas=1, schedule=schedule)
    return _times(strategy, twin.batch(schedule.chunks), updates)


def _time_updates(plan: Plan, twin: Twin, link: Link, updates: int) -> list[float]:
    with _network(plan, twin.link(link)):
        strategy = paced_strategy(plan, twin, link)
        return _times(strategy, twin.batch(plan.pieces.chunks), updates, plan.update_seconds)


def _times(strategy: Strategy, batch: Batch, updates: int, update_seconds: float = 0.0) -> list[float]:
    share, times = strategy.share(batch), []
    for _ in range(updates + 1):
        dist.barrier()
        began = time.monotonic()
        strategy.step(share)
        time.sleep(update_seconds)
        times.append(time.monotonic() - began)
    return times[1:]


@contextlib.contextmanager
def _network(plan: Plan, link: Link) -> Iterator[None]:
    """Pace sums over replicas. A sharded model's messages are paced block by block instead."""
    with paced_network(link) if plan.shards == 1 else contextlib.nullcontext():
        yield


def paced_strategy(plan: Plan, twin: Twin, link: Link) -> Strategy:
    """Return the strategy that runs the plan on the twin, with every block paced.

    If weight gradients are computed separately, whole actions are paced instead of blocks.
    """
    work, pieces = twin.work, plan.pieces
    cut = plan.replicas * plan.shards * pieces.micro_batches
    blocks = [work.seconds(place, cut, pieces.chunks) for place in range(len(work.blocks))]
    name, options = plan.strategy
    if name == "fsdp":
        strategy = FSDP(twin.model(), sgd, cross_entropy, **options)
        GatherWatch(strategy, _gather_pace(plan, twin, link))
        return strategy
    is_split = bool(plan.schedule.split)
    model = twin.model()
    if not is_split:
        pace_blocks(model, {place: (block.forward, block.backward) for place, block in enumerate(blocks)})
    pace = plan.costs if is_split else ActionCosts(0.0, 0.0, plan.costs.link)
    return Hybrid(model, sgd, cross_entropy, pace=pace, **options)


def _gather_pace(plan: Plan, twin: Twin, link: Link) -> GatherPace:
    """Return the mean over all blocks, to use for each."""
    work, count = twin.work, len(twin.work.blocks)
    gather = sum(link.all_reduce_seconds(each.parameters, plan.shards) for each in work.memory) / 2 / count
    blocks = [work.seconds(place, plan.ranks * plan.pieces.micro_batches) for place in range(count)]
    forward, backward = (sum(getattr(block, name) for block in blocks) / count for name in ("forward", "backward"))
    return GatherPace(gather, forward, backward, gather)
