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
import torch.distributed as dist
from torch import Tensor
from tqdm.auto import tqdm

from course_lib.core.batch import Batch
from course_lib.core.model import Recurrent, SequenceModel
from course_lib.core.samplers import Batches
from course_lib.core.strategy import Strategy
from course_lib.launcher.rank import stop
from course_lib.launcher.tracing.recording import profiled
from course_lib.runtime import trace

READ_EVERY = 0.25  # seconds: reading a loss waits for the GPU, so we read several at a time
SKIPPED = 3  # updates: the first ones allocate buffers, and are slow
PROFILED = 5
INPUT_WAIT = "input wait"
REASONS = ("", "the time limit", *stop.SIGNALS)


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


def compile_blocks(model: SequenceModel) -> None:
    """Let every block except LSTM layers compile its forward pass at its first call. Names and weights don't change."""
    for _, block in model.numbered():
        if not isinstance(block, Recurrent):
            block.forward = torch.compile(block.forward)


def with_input_waits(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the same batches, and record how long the loop waits for each as a span, `input wait`.

    The GPU may still be busy with the previous update. Only the part of a wait that outlasts this work costs time.
    """
    reader = iter(batches)
    while True:
        with trace.span(INPUT_WAIT, on_host=True):
            batch = next(reader, None)
        if batch is None:
            return
        yield batch


def profile_some(updates: Iterator[Update], total: int) -> Iterator[Update]:
    """Yield the same `total` updates, and profile a few of them, after the first ones if there are enough.

    The profile includes what the caller does between two updates.
    """
    yield from itertools.islice(updates, max(0, min(SKIPPED, total - PROFILED)))
    with profiled():
        yield from itertools.islice(updates, PROFILED)
    yield from updates


class StopAgreement:
    """Lets the ranks agree to stop, after a signal or when their time is up. Every rank must ask after every update.

    A signal may reach one rank, or all of them at different moments. So after each update an all-reduce combines the
    ranks' flags, and every rank acts on the result. The all-reduce runs during the next update, so no rank waits for
    it, and the ranks stop one update later.
    """

    def __init__(self, time_limit: float | None = None) -> None:
        self._deadline = None if time_limit is None else time.monotonic() + time_limit
        # A separate gloo group on the CPU: reading a flag from a GPU would wait for all of its queued work.
        self._group = dist.new_group(backend="gloo") if dist.get_world_size() > 1 else None
        self._pending: tuple[dist.Work, Tensor] | None = None

    def after_update(self) -> str:
        """Return the reason to stop now, or an empty string to continue: the same on every rank."""
        here = REASONS.index(stop.request.reason or "")
        if not here and self._deadline is not None and time.monotonic() >= self._deadline:
            here = REASONS.index("the time limit")
        if self._group is None:
            return REASONS[here]
        reason = self.close()
        flag = torch.tensor([here], dtype=torch.uint8)
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None  # this rank is in the group
        self._pending = work, flag
        return reason

    def close(self) -> str:
        """Wait for the last flags, and return their reason: a rank that exits earlier would break the connection."""
        pending, self._pending = self._pending, None
        if pending is None:
            return ""
        work, flag = pending
        work.wait()
        return REASONS[int(flag)]
