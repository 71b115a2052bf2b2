"""Lessons 02 to 04: buckets against random batches, our DDP against a bare loop, `no_sync` against without.

Each compares two things in the same run, in rounds that alternate between them.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib import device, launch
from course_lib.core.adding import AddingProblem
from course_lib.core.batch import Batch, pad
from course_lib.core.model import SequenceModel, cross_entropy, lstm_model, squared_error
from course_lib.core.samplers import ShardedBatches
from course_lib.core.strategy import Single
from course_lib.data_parallel.ddp import DDP, Accumulation
from course_lib.padding.buckets import BucketedBatches, load_of
from tests.benchmarks.table import alternate, table, write_section

ROUNDS, BATCHES = 9, 36
HIDDEN = 1024 if torch.cuda.is_available() else 128
VOCABULARY, TOKENS = 100, 8192
WHERE = " (GPU)" if torch.cuda.is_available() else ""
adam = partial(torch.optim.Adam, lr=0.001)


def buckets() -> str:
    """Return a table of padding, balance and real tokens per second of one process on log-normal lengths."""
    lengths = numpy.random.default_rng(0).lognormal(3, 0.7, 20_000).clip(2, 400).astype(int)
    samplers = [ShardedBatches(len(lengths), round(TOKENS / lengths.mean())), BucketedBatches(lengths, TOKENS)]
    strategy = Single(lstm_model(vocabulary=VOCABULARY, hidden=HIDDEN, layers=1), adam, cross_entropy)
    work, counts = [], []
    for sampler in samplers:
        batches = [text(lengths[indices]) for indices in sampler.global_batches()[:BATCHES]]
        counts.append(sum(int(batch.lengths.sum()) for batch in batches))
        work.append(lambda batches=batches: [strategy.step(batch) for batch in batches])
    speeds = [count / seconds for count, seconds in zip(counts, alternate(work, rounds=5), strict=True)]
    rows = []
    for name, sampler, speed in zip(("random", "bucketed"), samplers, speeds, strict=True):
        alone, shared = (load_of(sampler.global_batches(), lengths, ranks) for ranks in (1, 4))
        ratio = f"{speed / speeds[0]:.2f} x"
        rows.append([name, f"{alone.padding:.1%}", f"{shared.balance:.3f}", f"{speed:,.0f}", ratio])
    head = "batches | padding | most loaded of 4 ranks, over the mean | real tokens/s, one process | against random"
    return table(head, rows)


def text(lengths: numpy.ndarray) -> Batch:
    """Return sentences of random words."""
    words = [torch.randint(0, VOCABULARY, (int(length),)) for length in lengths]
    return pad(words, words)


class BareLoop:
    """The shortest data-parallel step there is: right only where all ranks count equally many steps."""

    def __init__(self) -> None:
        self.parallel = DistributedDataParallel(model().to(device()))
        self.optimizer = adam(self.parallel.parameters())

    def step(self, batch: Batch) -> None:
        batch = batch.to(device())
        self.optimizer.zero_grad()
        total, count = squared_error(self.parallel(batch.inputs)[0], batch)
        (total / count).backward()
        self.optimizer.step()


class WithoutNoSync(Accumulation):
    """Sends the gradients with every micro-batch."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parallel.no_sync = contextlib.nullcontext


def model() -> SequenceModel:
    return lstm_model(features=2, hidden=2 * HIDDEN, layers=2, outputs=1)


def data_parallel_times() -> list[float]:
    """Return, on every rank, seconds of the bare loop and ours, and of accumulation with and without `no_sync`."""
    batch = AddingProblem(128, (40, 40)).batch(range(128)).shard(dist.get_rank(), 2)
    loops = [BareLoop(), DDP(model(), adam, squared_error)]
    pieces = [kind(model(), adam, squared_error, micro_batches=8) for kind in (Accumulation, WithoutNoSync)]
    return [
        *alternate([partial(loop.step, batch) for loop in loops], ROUNDS),
        *alternate([partial(strategy.step, batch) for strategy in pieces], ROUNDS),
    ]


def main() -> None:
    """Measure, print and write the tables."""
    what = f"20,000 sequences of log-normal lengths, {TOKENS} tokens per batch, pools of 50, hidden {HIDDEN}."
    write_section(f"Buckets{WHERE}", what, buckets())
    bare, ours, once, every_time = launch(data_parallel_times, ranks=2, timeout=600)[0]
    rows = [
        ["a bare DDP loop", f"{bare * 1000:.1f}", "1 x"],
        ["`data_parallel/ddp.py`", f"{ours * 1000:.1f}", f"{ours / bare:.3f} x"],
        ["`data_parallel/ddp.py`, 8 micro-batches", f"{once * 1000:.1f}", f"{once / bare:.2f} x"],
        ["the same without `no_sync`", f"{every_time * 1000:.1f}", f"{every_time / once:.2f} x accumulation"],
    ]
    about = (
        f"Milliseconds per update on 2 ranks{' that share the GPU' if WHERE else ''}, hidden {2 * HIDDEN}, 2 layers, "
        f"128 sequences of 40 steps; the median of {ROUNDS} rounds that alternate."
    )
    write_section(f"Data parallelism{WHERE}", about, table("update | ms | ratio", rows))


if __name__ == "__main__":
    main()
