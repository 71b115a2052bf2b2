"""A whole training run, with checkpoints and a log: what `course train` runs on every rank.

launch(train.run, train.Settings("pipeline", updates=100, checkpoint="saved"), ranks=4, timeout=None)
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from course_lib import checkpoint, jobs, tasks
from course_lib.checkpoint import CheckpointError
from course_lib.data import Corpus
from course_lib.keeper import Keeper
from course_lib.launchers import RankFailed, Run, Slurm, job, launch, progress
from course_lib.launchers.progress import Progress
from course_lib.strategies import Strategy
from course_lib.training import Reader, train

MOST_COMMON = 4_000  # words of a text that have a number of their own


class BadSettings(ValueError):
    """A run that cannot start; the sentence says what to change."""


@dataclass(frozen=True)
class Settings:
    """What to train, how, and what to keep of it."""

    strategy: str = "single"
    options: dict[str, Any] = field(default_factory=dict)  # the strategy's own
    data: str = "adding"  # or text, or a file of text
    updates: int = 300
    batch: int = 64  # sequences of the adding problem in an update, of all ranks together
    tokens: int = 4096  # of a text in an update, of all ranks together
    hidden: int = 64
    layers: int = 2
    learning_rate: float = 0.01
    seed: int = 0
    checkpoint: str | None = None  # a folder
    every: int = 50  # updates from one checkpoint to the next
    resume: bool = False
    log: str | None = None  # a file

    @property
    def order(self) -> dict[str, Any]:
        """What decides which batch comes when: a run goes on only with the same."""
        size = {"batch": self.batch} if self.data == "adding" else {"tokens": self.tokens}
        return {"data": self.data, "seed": self.seed, "carry_state": self.options.get("carry_state", False)} | size


def run(settings: Settings, show: Callable[[Progress], None] = progress.send) -> dict[str, float]:
    """Train on all ranks, from the last checkpoint on if there is one to go on from; for every rank to call.

    Rank 0 writes the log, and calls `show` with how far the run is. Returns the updates done, the loss of the last
    one, and the global batches' tokens per second.
    """
    try:
        _check_numbers(settings, dist.get_world_size())
        goes_on = checkpoint.on_rank_0(lambda: _goes_on(settings, comes_back=job.started_by_torchrun()))
        task = _task(settings)
        strategy = _strategy(settings, task)
        reader = Reader(task.dataset, task.sampler)
        saved = _go_on(strategy, reader, settings) if goes_on else None
        keeper = Keeper(settings, strategy, reader, saved, show)
    except ValueError as error:
        raise BadSettings(str(error)) from error
    train(strategy, reader, updates=settings.updates - keeper.updates, progress=False, after_update=keeper.keep)
    return {"updates": keeper.updates, "loss": keeper.loss, "tokens per second": keeper.tokens_per_second}


def check(settings: Settings, ranks: int, *, comes_back: bool = False) -> None:
    """Refuse, without training anything, a run that cannot start. What depends on the data is found out by `run`.

    The same command starts a job that `comes_back` and brings it back: it may ask to resume before there is a
    checkpoint.
    """
    _check_numbers(settings, ranks)
    try:
        _goes_on(settings, comes_back)
    except CheckpointError as error:
        raise BadSettings(str(error)) from error


def _check_numbers(settings: Settings, ranks: int) -> None:
    try:
        jobs.maker(settings.strategy, settings.learning_rate, settings.options)
    except ValueError as error:
        raise BadSettings(str(error)) from error
    for name in ("updates", "batch", "tokens", "hidden", "layers", "every"):
        if getattr(settings, name) < 1:
            raise BadSettings(f"{name}={getattr(settings, name)}: give 1 or more")
    if not settings.learning_rate > 0:
        raise BadSettings(f"learning_rate={settings.learning_rate}: give a number above 0")
    if settings.seed < 0:
        raise BadSettings(f"seed={settings.seed}: a seed is 0 or more")
    if settings.strategy == "single" and ranks != 1:
        raise BadSettings(f"single trains on one rank, not on {ranks}: give --ranks 1, or another strategy")
    if settings.options.get("carry_state") and settings.data == "adding":
        raise BadSettings("carry_state=True: sequences of the adding problem have nothing to carry; give --data text")


def _goes_on(settings: Settings, comes_back: bool) -> bool:
    """Whether there is a checkpoint to go on from: because that was asked for, or because the job was restarted."""
    if settings.checkpoint is None:
        if settings.resume:
            raise CheckpointError("--resume needs to know from where: give --checkpoint and the folder")
        return False
    try:
        os.makedirs(settings.checkpoint, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{settings.checkpoint} cannot be made ({error.strerror}): give another folder"
        ) from error
    found = checkpoint.latest(settings.checkpoint)
    if found is not None:
        _check_continues(settings, checkpoint.read(found))
    elif settings.resume and not comes_back:
        raise CheckpointError(f"there is no checkpoint in {settings.checkpoint}: leave out --resume to start anew")
    return found is not None


def _check_continues(settings: Settings, found: checkpoint.Checkpoint) -> None:
    """Refuse to go on from a checkpoint without leave, or with other data than it has seen."""
    if not settings.resume and not job.restarts():
        raise CheckpointError(
            f"{settings.checkpoint} has a checkpoint of update {found.position.updates}: "
            "give --resume to go on from there, or another folder"
        )
    for name, was in found.notes.get("order", {}).items():
        if settings.order.get(name) != was:
            raise CheckpointError(
                f"{settings.checkpoint} was saved with {name}={was}: go on with the same, "
                "or the run would skip some of the data and see some of it twice"
            )


def _task(settings: Settings) -> tasks.Task:
    size = (settings.hidden, settings.layers)
    if settings.data == "adding":
        return tasks.adding(settings.batch, (5, 20), *size, settings.seed)
    if settings.data == "text":
        corpus = Corpus.from_python_docs(most_common=MOST_COMMON)
    else:
        corpus = Corpus.from_file(settings.data, most_common=MOST_COMMON)
    if settings.options.get("carry_state"):
        return tasks.streams(corpus, settings.tokens, *size)
    return tasks.sentences(corpus, settings.tokens, *size, settings.seed)


def _strategy(settings: Settings, task: tasks.Task) -> Strategy:
    make = jobs.maker(settings.strategy, settings.learning_rate, settings.options)
    return make(tasks.seeded_model(task, settings.seed), loss=task.loss)


def _go_on(strategy: Strategy, reader: Reader, settings: Settings) -> checkpoint.Checkpoint:
    """Put strategy and reader where the last checkpoint left off."""
    strategy.step(strategy.share(next(iter(Reader(reader.dataset, reader.sampler)))))  # overwritten: see `load`
    saved = checkpoint.load(strategy, settings.checkpoint)
    reader.epoch, reader.batch = saved.position.epoch, saved.position.batch
    if saved.position.updates > settings.updates:
        raise BadSettings(f"{saved.path} has {saved.position.updates} updates already: give --updates a larger number")
    if dist.get_rank() == 0:
        print(f"going on from update {saved.position.updates}")
    return saved


def launched(settings: Settings, ranks: int, on: Slurm | None = None) -> Run:
    """The run on `ranks` ranks of this machine or a cluster. Raises BadSettings if a rank has found them to be bad."""
    check(settings, ranks, comes_back=on is not None)
    with _sentences():
        return launch(run, settings, ranks=ranks, timeout=None, on=on)


def as_rank(settings: Settings, peer_timeout: float | None = None) -> Run | None:
    """The run as one rank of a torchrun job, with the bar drawn by rank 0. The other ranks return None."""
    _check_numbers(settings, int(os.environ["WORLD_SIZE"]))  # before the ranks meet, which takes a while
    bar = progress.Bar(sys.__stderr__)
    try:
        with _sentences():
            return job.run_here(run, settings, show=bar.show, peer_timeout=peer_timeout)
    finally:
        bar.close()


def how_to_go_on(settings: Settings) -> str:
    """The end of the sentence that says a run was interrupted."""
    found = checkpoint.latest(settings.checkpoint) if settings.checkpoint else None
    if found is None:
        return ""
    return f"; update {checkpoint.read(found).position.updates} is saved, and --resume goes on from there"


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    """Where all ranks found the settings to be bad, the sentence is enough, without their stacks."""
    try:
        yield
    except RankFailed as error:
        if isinstance(error.exception, BadSettings):
            raise error.exception from None
        raise
