"""One training loop for every strategy: `updates_on` makes the updates, and `train` keeps their history.

What `course train` adds is at the end: compiled blocks, a profile of some updates, and ranks that agree when to stop.
"""

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

from course_lib.core.batch import Batch
from course_lib.core.samplers import Batches
from course_lib.core.strategy import Strategy

READ_EVERY = 0.25  # seconds: reading a loss waits for the GPU, so we read several at a time


@dataclass(frozen=True)
class Update:
    """One update: its loss (still on the device), its global batch, and this rank's share of that batch."""

    loss: Tensor
    batch: Batch
    share: Batch
    seconds: float


@dataclass
class History:
    """A training run's history: each update's loss, the tokens that this rank read, and the seconds it took."""

    losses: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """The median update's tokens per second, without padding. The mean would include the slow first updates."""
        return statistics.median(t / s for t, s in zip(self.tokens, self.seconds, strict=True))

    def smoothed(self, window: int = 20) -> list[float]:
        """Return the mean loss of the last `window` updates, at every update."""
        return [statistics.fmean(self.losses[max(0, end - window) : end]) for end in range(1, len(self.losses) + 1)]


def updates_on(strategy: Strategy, batches: Iterable[Batch], updates: int | None = None) -> Iterator[Update]:
    """Train on global `batches`, and yield after every update. Keeps no history."""
    for batch in itertools.islice(batches, updates):
        started_at = time.monotonic()
        share = strategy.share(batch)
        loss, _ = strategy.step(share)
        yield Update(loss, batch, share, time.monotonic() - started_at)


def train(
    strategy: Strategy, batches: Iterable[Batch], *, updates: int | None = None, progress: bool = True
) -> History:
    """Train on global `batches`; stop after `updates`, if given. Returns the history.

    The progress bar shows in a terminal or a notebook, and is hidden if output goes to a file or a pipe.
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
    """An endless iterator of global batches, with a different order in each epoch.

    `epoch` and `batch` identify the next batch. The order depends only on the seed and the epoch, so a checkpoint needs
    just these two numbers to continue where it stopped.
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
    """Return an endless iterator of global batches, from the first one."""
    return iter(BatchReader(dataset, sampler))


@torch.no_grad()
def evaluate(strategy: Strategy, batches: Iterable[Batch]) -> float:
    """Return the loss per counted step: the sum over all batches, divided once. Needs the whole model on this rank."""
    total, count = 0.0, 0
    for batch in batches:
        batch = batch.to(strategy.device)
        outputs, _ = strategy.model(batch.inputs)
        batch_total, batch_count = strategy.loss(outputs, batch)
        total, count = total + batch_total.item(), count + int(batch_count)
    return total / max(1, count)
