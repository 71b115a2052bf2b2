"""What `course train` is asked to do, and whether it can be done."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from course_lib.launchers import torchrun
from course_lib.strategies import make_strategy
from course_lib.training.checkpoint_folder import Checkpoint, CheckpointError, latest_checkpoint, read_checkpoint


class BadSettings(ValueError):
    """A run that cannot start; the sentence says what to change."""


@dataclass(frozen=True)
class Settings:
    """What to train, how, and what to keep of it."""

    strategy: str = "single"  # or ddp, pipeline ..., or module:Class
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
        """What decides which batch comes when: a run is resumed only with the same."""
        size = {"batch": self.batch} if self.data == "adding" else {"tokens": self.tokens}
        return {"data": self.data, "seed": self.seed, "carry_state": self.options.get("carry_state", False)} | size


def check_settings(settings: Settings, ranks: int, *, may_restart: bool = False) -> None:
    """Refuse, without training anything, a run that cannot start. What depends on the data is found out by the job.

    The same command starts a job that `may_restart` and restarts it: it may ask to resume before there is a checkpoint.
    """
    check_numbers(settings, ranks)
    try:
        find_checkpoint(settings, may_restart)
    except CheckpointError as error:
        raise BadSettings(str(error)) from error


def check_numbers(settings: Settings, ranks: int) -> None:
    """Refuse what cannot be trained on so many ranks, whatever is on the disk."""
    try:
        make_strategy(settings.strategy, settings.learning_rate, settings.options)
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


def find_checkpoint(settings: Settings, may_restart: bool) -> Checkpoint | None:
    """The checkpoint to resume from: because that was asked for, or because the job was restarted."""
    if settings.checkpoint is None:
        if settings.resume:
            raise CheckpointError("--resume needs to know from where: give --checkpoint and the folder")
        return None
    try:
        os.makedirs(settings.checkpoint, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{settings.checkpoint} cannot be made ({error.strerror}): give another folder"
        ) from error
    path = latest_checkpoint(settings.checkpoint)
    if path is not None:
        found = read_checkpoint(path)
        _check_may_resume(settings, found)
        return found
    if settings.resume and not may_restart:
        raise CheckpointError(f"there is no checkpoint in {settings.checkpoint}: leave out --resume to start anew")
    return None


def _check_may_resume(settings: Settings, found: Checkpoint) -> None:
    """Refuse to resume from a checkpoint without leave, or with other data than it has seen."""
    if not settings.resume and not torchrun.restarts():
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
