"""Lessons 02 to 04: buckets against random batches, our DDP against a bare loop, `no_sync` against without.

Each compares two things in the same run, in rounds that alternate between them.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from course_lib import device, launch
from course_lib.data import AddingProblem, Batch, BucketedBatches, ShardedBatches, load_of, pad
from course_lib.lstm.model import cross_entropy, lstm_model, squared_error
from course_lib.strategies import DDP, Accumulation, Single
from tests.bench.table import describe_machine, write_section

ROUNDS = 9
HIDDEN = 1024 if torch.cuda.is_available() else 128
VOCABULARY, TOKENS = 100, 8192
WHERE = " (GPU)" if torch.cuda.is_available() else ""
adam = partial(torch.optim.Adam, lr=0.001)


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes, to the end of what it started on a GPU."""
    _finish()
    began = time.monotonic()
    work()
    _finish()
    return time.monotonic() - began


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def alternate(contenders: list[Callable[[], object]], rounds: int = ROUNDS) -> list[float]:
    """The median seconds of each, after a round that warms up; the rounds alternate, so that noise hits them all."""
    times = [[seconds(contender) for contender in contenders] for _ in range(rounds + 1)][1:]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def buckets() -> str:
    """Real tokens per second of one process on log-normal lengths."""
    lengths = numpy.random.default_rng(0).lognormal(3, 0.7, 20_000).clip(2, 400).astype(int)
    samplers = {
        "random": ShardedBatches(len(lengths), round(TOKENS / lengths.mean())),
        "bucketed": BucketedBatches(lengths, TOKENS),
    }
    strategy = Single(lstm_model(vocabulary=VOCABULARY, hidden=HIDDEN, layers=1), adam, cross_entropy)
    speeds = {name: [] for name in samplers}
    for number in tqdm(range(6), desc="epoch parts"):
        for name, sampler in samplers.items():
            batches = [_text(lengths[indices]) for indices in sampler.global_batches()[number * 6 : number * 6 + 6]]
            spent = seconds(lambda batches=batches: [strategy.step(batch) for batch in batches])
            speeds[name].append(sum(int(batch.lengths.sum()) for batch in batches) / spent)
    rows = []
    for name, sampler in samplers.items():
        load, speed = load_of(sampler.global_batches(), lengths, ranks=4), statistics.median(speeds[name][1:])
        alone = load_of(sampler.global_batches(), lengths).padding
        ratio = speed / statistics.median(speeds["random"][1:])
        rows.append(f"| {name} | {alone:.1%} | {load.balance:.3f} | {speed:,.0f} | {ratio:.2f} x |")
    head = "| batches | padding | most loaded of 4 ranks, over the mean | real tokens/s, one process | against random |"
    about = f"20,000 sequences of log-normal lengths, {TOKENS} tokens per batch, pools of 50, hidden {HIDDEN}."
    return "\n".join([about, "", f"On {describe_machine()}.", "", head, "|---|--:|--:|--:|--:|", *rows])


def _text(lengths: numpy.ndarray) -> Batch:
    words = [torch.randint(0, VOCABULARY, (int(length),)) for length in lengths]
    return pad(words, words)


class BareLoop:
    """The shortest data-parallel step there is: right only where all ranks count equally many steps."""

    def __init__(self) -> None:
        self.parallel = DistributedDataParallel(_model().to(device()))
        self.optimizer = adam(self.parallel.parameters())

    def step(self, batch: Batch) -> Tensor:
        batch = batch.to(device())
        self.optimizer.zero_grad()
        total, count = squared_error(self.parallel(batch.inputs)[0], batch)
        (total / count).backward()
        self.optimizer.step()
        return total.detach()


class WithoutNoSync(Accumulation):
    """Sends the gradients with every micro-batch."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.parallel.no_sync = contextlib.nullcontext


def _model():
    return lstm_model(features=2, hidden=2 * HIDDEN, layers=2, outputs=1)


def data_parallel_times(sequences: int, steps: int) -> tuple[list[float], list[float]]:
    """On every rank: the bare loop and ours; accumulation with and without `no_sync`."""
    batch = AddingProblem(sequences, (steps, steps)).batch(range(sequences)).shard(dist.get_rank(), 2)
    loops = [BareLoop(), DDP(_model(), adam, squared_error)]
    kinds = (Accumulation, WithoutNoSync)
    accumulating = [kind(_model(), adam, squared_error, micro_batches=8) for kind in kinds]
    return (
        alternate([partial(loop.step, batch) for loop in loops]),
        alternate([partial(strategy.step, batch) for strategy in accumulating]),
    )


def data_parallel() -> str:
    """Two ranks: what our strategies cost beside the shortest code."""
    run = launch(data_parallel_times, 128, 40, ranks=2, timeout=600)
    (bare, ours), (once, every_time) = run[0]
    rows = [
        f"| a bare DDP loop | {bare * 1000:.1f} | 1 x |",
        f"| `strategies/ddp.py` | {ours * 1000:.1f} | {ours / bare:.3f} x |",
        f"| `strategies/ddp.py`, 8 micro-batches | {once * 1000:.1f} | {once / bare:.2f} x |",
        f"| the same without `no_sync` | {every_time * 1000:.1f} | {every_time / once:.2f} x accumulation |",
    ]
    about = (
        f"Milliseconds per update on 2 ranks{' that share the GPU' if torch.cuda.is_available() else ''}, hidden "
        f"{2 * HIDDEN}, 2 layers, 128 sequences of 40 steps; the median of {ROUNDS} rounds that alternate."
    )
    return "\n".join([about, "", f"On {describe_machine()}.", "", "| update | ms | ratio |", "|---|--:|--:|", *rows])


def main() -> None:
    """Measure, print and write the tables."""
    write_section(f"Buckets{WHERE}", buckets())
    write_section(f"Data parallelism{WHERE}", data_parallel())


if __name__ == "__main__":
    main()
