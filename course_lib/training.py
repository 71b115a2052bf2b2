"""One loop for every strategy."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from tqdm.auto import tqdm

from course_lib.data import Batch
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
    strategy: Strategy, batches: Iterable[Batch], *, updates: int | None = None, progress: bool = True
) -> History:
    """Train on `batches`, each meant for all ranks together; stop after `updates`, if given.

    The progress bar shows in a terminal or a notebook, and stays silent where output goes to a file or a pipe.
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
    history.losses = [loss.item() for loss in losses]
    return history


def epochs(dataset, sampler) -> Iterator[Batch]:
    """Global batches without end, each epoch in an order of its own."""
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for indices in sampler.global_batches():
            yield dataset.batch(indices)


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
