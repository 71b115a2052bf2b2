"""One loop for every strategy."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from course_lib.data import Batch
from course_lib.data.samplers import Batches
from course_lib.strategies import Strategy


@dataclass
class History:
    """What a training run left behind: per update, the loss, the steps of sequences it read, and its seconds."""

    losses: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Real steps (no padding) per second, by the median update: the first ones are slow."""
        return statistics.median(t / s for t, s in zip(self.tokens, self.seconds, strict=True))

    def smoothed(self, window: int = 20) -> list[float]:
        """The mean loss of the last `window` updates, at every update."""
        return [statistics.fmean(self.losses[max(0, end - window) : end]) for end in range(1, len(self.losses) + 1)]


def train(
    strategy: Strategy,
    batches: Iterable[Batch],
    *,
    updates: int | None = None,
    progress: bool = True,
    after_update: Callable[[Tensor, Batch], None] | None = None,
) -> History:
    """Train on `batches`, each meant for all ranks together; stop after `updates`, if given.

    The progress bar shows in a terminal or a notebook, and stays silent where output goes to a file or a pipe.
    `after_update` is called with the loss and the global batch of each update.
    """
    history = History()
    losses: list[torch.Tensor] = []
    with tqdm(total=updates, disable=None if progress else True, leave=False, unit="update") as bar:
        for batch in itertools.islice(batches, updates):
            began = time.monotonic()
            mine = strategy.share(batch)
            loss, _ = strategy.step(mine)
            losses.append(loss)
            if len(losses) % 10 == 0:
                bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)
            bar.update()
            history.tokens.append(int(mine.lengths.sum()))
            history.seconds.append(time.monotonic() - began)
            if after_update is not None:
                after_update(loss, batch)
    history.losses = [loss.item() for loss in losses]
    return history


@dataclass
class Reader:
    """Global batches without end, each epoch in an order of its own.

    `epoch` and `batch` say which batch comes next. The order follows from the seed and the epoch, so these two
    numbers are all that a checkpoint needs to go on reading where it stopped.
    """

    dataset: Any
    sampler: Batches
    epoch: int = 0
    batch: int = 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.sampler.set_epoch(self.epoch)
            batches = self.sampler.global_batches()
            while self.batch < len(batches):
                self.batch += 1
                yield self.dataset.batch(batches[self.batch - 1])
            self.epoch, self.batch = self.epoch + 1, 0


def epochs(dataset: Any, sampler: Batches) -> Iterator[Batch]:
    """Global batches without end, from the first one on."""
    return iter(Reader(dataset, sampler))


@torch.no_grad()
def evaluate(strategy, batches: Iterable[Batch]) -> float:
    """The loss per counted step over all batches: sums and counts, divided once."""
    total, count = 0.0, 0
    for batch in batches:
        batch = batch.to(strategy.device)
        outputs, _ = strategy.model(batch.inputs)
        batch_total, batch_count = strategy.loss(outputs, batch)
        total, count = total + batch_total.item(), count + batch_count.item()
    return total / max(1, count)


def seconds_per_update(strategy: Strategy, batch: Batch, repeats: int = 5) -> float:
    """How long one update on `batch` takes: the median of `repeats`, after two that warm up."""
    times = []
    for _ in range(repeats + 2):
        _finish()
        began = time.monotonic()
        strategy.step(batch)
        _finish()
        times.append(time.monotonic() - began)
    return statistics.median(times[2:])


def _finish() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
