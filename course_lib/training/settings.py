"""The settings of `course train`, and checks whether the run can start."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib import machine
from course_lib.lstm.gpt import HEADS, needs_hidden
from course_lib.lstm.memory import count_lstm_parameters
from course_lib.strategies import make_strategy
from course_lib.strategies.registry import find_strategy, options_of
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError, find_checkpoint
from course_lib.training.log import PREFIX, LogError, check_has_tensorboard, check_log
from course_lib.training.user_code import names_a_function, user_function

BYTES_PER_NUMBER = 4
TRAINED_NUMBERS = 4  # per parameter: the weight, its gradient, and two from Adam
MOST_LAYERS = 10_000  # building more takes minutes, even if they are small


class BadSettings(ValueError):
    """A run that cannot start. The message says what to change."""


@dataclass(frozen=True)
class Settings:
    """What to train, how, and what to save."""

    strategy: str = "single"  # or ddp, pipeline ..., or module:Class
    options: dict[str, Any] = field(default_factory=dict)  # for the strategy
    data: str = "adding"  # or text, or a text file, or module:function
    model: str | None = None  # gpt, or module:function, or None for an LSTM
    updates: int = 300
    batch: int = 64  # sequences of the adding problem per update, over all ranks
    tokens: int = 4096  # tokens of a text per update, over all ranks
    hidden: int = 64
    layers: int = 2
    learning_rate: float = 0.01
    precision: str = "fp32"  # or bf16, or fp16: for the forward pass; weights are in float32
    seed: int = 0
    checkpoint: str | None = None  # a folder
    every: int = 50  # updates between checkpoints
    async_checkpoint: bool = False  # write them in the background
    resume: bool = False
    time_limit: float | None = None  # seconds, after which the run saves a checkpoint and stops
    log: str | None = None  # a file
    tensorboard: str | None = None  # a folder, for the same records
    recompute: bool = False  # recompute activations instead of keeping them
    compile: bool = False  # every block except LSTM layers
    profile: bool = False  # a few updates, for a trace of all ranks

    @property
    def strategy_options(self) -> dict[str, Any]:
        """The strategy's options, including those with a separate flag."""
        return self.options | ({"recompute": True} if self.recompute else {})

    @property
    def order(self) -> dict[str, Any]:
        """The settings that decide the order of batches: a run can resume only with the same ones."""
        size = {"batch": self.batch} if self.data == "adding" else {"tokens": self.tokens}
        if names_a_function(self.data):
            size["batch"] = self.batch
        return {"data": self.data, "seed": self.seed, "carry_state": self.options.get("carry_state", False)} | size


def split_logs(values: Sequence[str]) -> dict[str, str]:
    """Return `log` and `tensorboard` from the values of --log: a file, and tensorboard:FOLDER, each at most once."""
    logs: dict[str, str] = {}
    for text in values:
        kind = "tensorboard" if text.startswith(PREFIX) else "log"
        place = text.removeprefix(PREFIX)
        if not place.strip():
            raise BadSettings(f"--log {text}: name a folder, for example tensorboard:runs")
        if kind in logs:
            raise BadSettings(f"--log {text}: this kind of log is set already; give one file, one tensorboard:FOLDER")
        logs[kind] = place
    return logs


def check_settings(settings: Settings, ranks: int, *, may_restart: bool = False) -> None:
    """Refuse a run that cannot start, without training anything. The job checks what depends on the data.

    With `may_restart`, the same command starts and restarts the job, so it may ask to resume before there is a
    checkpoint.
    """
    check_numbers(settings, ranks)
    if not may_restart:  # otherwise it runs on different machines
        check_memory(settings, ranks)
    try:
        checkpoint_to_resume(settings, may_restart)
        if settings.log is not None:
            check_log(settings.log)
    except (CheckpointError, LogError) as error:
        raise BadSettings(str(error)) from error


def check_numbers(settings: Settings, ranks: int) -> None:
    """Refuse settings that cannot be trained on this many ranks, regardless of what is on disk."""
    try:
        if settings.recompute and "recompute" not in options_of(find_strategy(settings.strategy)):
            raise BadSettings(
                f"{settings.strategy} keeps its activations: leave out --recompute, or choose pipeline or hybrid"
            )
        if settings.recompute and settings.options.get("recompute", True) is not True:
            raise BadSettings(f"recompute={settings.options['recompute']} and --recompute: give only one of the two")
        make_strategy(settings.strategy, settings.learning_rate, settings.strategy_options, settings.precision)
        if settings.tensorboard is not None:
            check_has_tensorboard()
        if names_a_function(settings.data):
            user_function("data", settings.data)
        if settings.model is not None:
            user_function("model", settings.model)
    except ValueError as error:
        raise BadSettings(str(error)) from error
    for name in ("updates", "batch", "tokens", "hidden", "layers", "every"):
        if getattr(settings, name) < 1:
            raise BadSettings(f"{name}={getattr(settings, name)}: give 1 or more")
    if settings.layers > MOST_LAYERS:
        raise BadSettings(f"layers={settings.layers}: give at most {MOST_LAYERS}")
    if not 0 < settings.learning_rate < math.inf:
        raise BadSettings(f"learning_rate={settings.learning_rate}: give a number above 0")
    if not 0 <= settings.seed <= machine.MAX_SEED:
        raise BadSettings(f"seed={settings.seed}: a seed is 0 or more, and at most {machine.MAX_SEED}")
    if settings.time_limit is not None and not 0 < settings.time_limit < math.inf:
        raise BadSettings(f"time_limit={settings.time_limit}: give a number of seconds above 0")
    if settings.time_limit is not None and settings.checkpoint is None:
        raise BadSettings("--time-limit saves a checkpoint when the time is up: give --checkpoint and a folder")
    if settings.strategy == "single" and ranks != 1:
        raise BadSettings(f"single trains on one rank, not on {ranks}: give --ranks 1, or another strategy")
    if settings.model == "gpt" and (problem := needs_hidden(settings.hidden, HEADS)):
        raise BadSettings(problem)
    if settings.model == "gpt" and settings.options.get("carry_state"):
        raise BadSettings("carry_state=True: a GPT has no state to carry; leave it out, or train an LSTM")
    if settings.options.get("carry_state") and settings.data == "adding":
        raise BadSettings("carry_state=True: sequences of the adding problem have nothing to carry; give --data text")


def check_memory(settings: Settings, ranks_here: int) -> None:
    """Refuse a model that cannot fit this machine's memory, counting only its LSTM layers.

    Every rank builds the whole model before it takes its part. Without a GPU, training also uses this memory.
    """
    if settings.model is not None:
        return
    available = machine.memory_bytes()
    copies = ranks_here if machine.gpus() else max(ranks_here, TRAINED_NUMBERS)
    required = copies * BYTES_PER_NUMBER * settings.layers * count_lstm_parameters(settings.hidden)
    if available is not None and required > available:
        raise BadSettings(
            f"hidden={settings.hidden} and layers={settings.layers} need {required / 2**30:,.0f} GiB of memory, and "
            f"this machine has {available / 2**30:,.0f}: give smaller ones"
        )


def checkpoint_to_resume(settings: Settings, may_restart: bool) -> Checkpoint | None:
    """Return the checkpoint to resume from, if that was requested or the job was restarted.

    Only its description is verified here; its tensors are verified when they are loaded.
    """
    if settings.checkpoint is None:
        if settings.resume:
            raise CheckpointError("--resume needs a folder to resume from: give --checkpoint")
        return None
    check_can_be_made(Path(settings.checkpoint))
    checkpoint, _ = find_checkpoint(settings.checkpoint, only_facts=True)
    if checkpoint is not None:
        _check_may_resume(settings, checkpoint)
        return checkpoint
    if settings.resume and not may_restart:
        raise CheckpointError(f"there is no checkpoint in {settings.checkpoint}: leave out --resume to start over")
    return None


def check_can_be_made(folder: Path) -> None:
    """Refuse a folder that cannot be written. It is not created here: the run may fail to start for another reason."""
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass  # it can still be created
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be created ({error.strerror}): give another folder") from error
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not os.path.isdir(nearest):
        raise CheckpointError(f"{folder} cannot be created ({nearest} is a file): give another folder")
    if not os.access(nearest, os.W_OK):
        raise CheckpointError(f"{folder} cannot be created (no permission to write to {nearest}): give another folder")


def _check_may_resume(settings: Settings, checkpoint: Checkpoint) -> None:
    """Refuse to resume without --resume, or with a different model or data order than the checkpoint has."""
    if not settings.resume and not machine.restarts():
        raise CheckpointError(
            f"{settings.checkpoint} has a checkpoint of update {checkpoint.position.updates}: "
            "give --resume to continue from there, or another folder"
        )
    if (model := checkpoint.notes.get("model")) != settings.model:
        saved = f"--model {model}" if model else "the course's LSTM, without --model"
        raise CheckpointError(
            f"{settings.checkpoint} was saved with {saved}: continue with the same, or give another folder"
        )
    for name, saved in checkpoint.notes.get("order", {}).items():
        if settings.order.get(name) != saved:
            raise CheckpointError(
                f"{settings.checkpoint} was saved with {name}={saved}: continue with the same, "
                "or the run would skip some of the data and see some of it twice"
            )
