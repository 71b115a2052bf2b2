"""One loop for every strategy."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from course_lib.data import Batch
from course_lib.data.samplers import Batches
from course_lib.strategies import Strategy

READ_EVERY = 0.25  # seconds: to read a loss is to wait for the GPU, so losses are read several at a time


@dataclass(frozen=True)
class Update:
    """One update: its loss, still on the device, the global batch that gave it, and this rank's share of that."""

    loss: Tensor
    batch: Batch
    share: Batch
    seconds: float


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


def updates_on(strategy: Strategy, batches: Iterable[Batch], updates: int | None = None) -> Iterator[Update]:
    """Train on `batches`, each meant for all ranks together, and say so after every update. Keeps nothing."""
    for batch in itertools.islice(batches, updates):
        began = time.monotonic()
        share = strategy.share(batch)
        loss, _ = strategy.step(share)
        yield Update(loss, batch, share, time.monotonic() - began)


def train(
    strategy: Strategy, batches: Iterable[Batch], *, updates: int | None = None, progress: bool = True
) -> History:
    """Train on `batches`, each meant for all ranks together; stop after `updates`, if given.

    The progress bar shows in a terminal or a notebook, and stays silent where output goes to a file or a pipe.
    """
    history, unread, read_at = History(), [], time.monotonic()
    with tqdm(total=updates, disable=None if progress else True, leave=False, unit="update") as bar:
        for update in updates_on(strategy, batches, updates):
            unread.append(update.loss)
            history.tokens.append(int(update.share.lengths.sum()))
            history.seconds.append(update.seconds)
            bar.update()
            if time.monotonic() - read_at >= READ_EVERY:
                history.losses += [loss.item() for loss in unread]
                bar.set_postfix(loss=f"{history.losses[-1]:.4f}", refresh=False)
                unread, read_at = [], time.monotonic()
    history.losses += [loss.item() for loss in unread]
    return history


@dataclass
class BatchReader:
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
    return iter(BatchReader(dataset, sampler))


@torch.no_grad()
def evaluate(strategy: Strategy, batches: Iterable[Batch]) -> float:
    """The loss per counted step over all batches, of a strategy that has the whole model: sums, divided once."""
    total, count = 0.0, 0
    for batch in batches:
        batch = batch.to(strategy.device)
        outputs, _ = strategy.model(batch.inputs)
        batch_total, batch_count = strategy.loss(outputs, batch)
        total, count = total + batch_total.item(), count + int(batch_count)
    return total / max(1, count)
