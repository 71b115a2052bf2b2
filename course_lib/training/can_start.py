"""Whether a training run can start: if not, it is refused in one sentence, before ranks start."""

from __future__ import annotations

import os
from pathlib import Path

from course_lib import machine
from course_lib.launchers.target import find_yours, names_a_function
from course_lib.lstm.gpt import HEADS, needs_hidden
from course_lib.lstm.memory import count_lstm_parameters
from course_lib.settings import BadSettings, Settings
from course_lib.strategies.registry import checked_options
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError, find_checkpoint
from course_lib.training.log import LogError, check_log
from course_lib.training.user_code import MODELS
from course_lib.words import memory_in_words

BYTES_PER_NUMBER = 4
TRAINED_NUMBERS = 4  # per parameter: the weight, its gradient, and two from Adam


def check_settings(settings: Settings, ranks: int, *, may_restart: bool = False) -> None:
    """Refuse a run that cannot start. The job itself checks what depends on the data.

    With `may_restart`, the same command starts and restarts the job, on other machines, so it may ask to resume before
    there is a checkpoint.
    """
    check_names(settings)
    check_ranks(settings, ranks, ranks_here=0 if may_restart else ranks)
    try:
        checkpoint_to_resume(settings, may_restart)
        if settings.log is not None:
            check_log(settings.log)
    except (CheckpointError, LogError) as error:
        raise BadSettings(str(error)) from error


def check_names(settings: Settings) -> None:
    """Refuse a strategy, options of it, a model or data that do not exist."""
    try:
        checked_options(settings.strategy, settings.options, settings.precision)
        if names_a_function(settings.data):
            find_yours("--data", settings.data)
        if settings.model is not None:
            find_yours("--model", MODELS.get(settings.model, settings.model))
    except ValueError as error:
        raise BadSettings(str(error)) from error
    if settings.model == "gpt" and (problem := needs_hidden(settings.hidden, HEADS)):
        raise BadSettings(problem)


def check_ranks(settings: Settings, ranks: int, ranks_here: int) -> None:
    """Refuse a number of ranks that the strategy cannot use, and a model that cannot fit this machine's memory.

    Every rank on this machine builds the whole model before it takes its part; we count only its LSTM layers. Without a
    GPU, training also uses this memory.
    """
    if settings.strategy == "single" and ranks != 1:
        raise BadSettings(f"single trains on one rank, not on {ranks}: give --ranks 1, or another strategy")
    available = machine.memory_bytes()
    if settings.model is not None or available is None or not ranks_here:
        return
    copies = ranks_here if machine.gpus() else max(ranks_here, TRAINED_NUMBERS)
    required = copies * BYTES_PER_NUMBER * settings.layers * count_lstm_parameters(settings.hidden)
    if required > available:
        raise BadSettings(
            f"hidden={settings.hidden} and layers={settings.layers} need {memory_in_words(required)} of memory, and "
            f"this machine has {memory_in_words(available)}: give smaller ones"
        )


def checkpoint_to_resume(settings: Settings, may_restart: bool) -> Checkpoint | None:
    """Return the checkpoint to resume from, if that was requested or the job was restarted.

    Only its description is verified here; its tensors are verified when they are loaded.
    """
    if settings.checkpoint is None:
        return None
    check_can_be_made(Path(settings.checkpoint))
    checkpoint, _ = find_checkpoint(settings.checkpoint, only_facts=True)
    if checkpoint is not None:
        _check_may_resume(settings, checkpoint)
    elif settings.resume and not may_restart:
        raise CheckpointError(f"there is no checkpoint in {settings.checkpoint}: leave out --resume to start over")
    return checkpoint


def check_can_be_made(folder: Path) -> None:
    """Refuse a folder that cannot be written. It is not created here: the run may fail to start for another reason."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    problem = "" if os.access(nearest, os.W_OK) else f"no permission to write to {nearest}"
    if not os.path.isdir(nearest):
        problem = f"{nearest} is a file"
    if problem:
        raise CheckpointError(f"{folder} cannot be created ({problem}): give another folder")


def _check_may_resume(settings: Settings, checkpoint: Checkpoint) -> None:
    """Refuse to resume without --resume, or with a different model or data order than the checkpoint has."""
    folder, notes = settings.checkpoint, checkpoint.notes
    if not settings.resume and not machine.restarts():
        raise CheckpointError(
            f"{folder} has a checkpoint of update {checkpoint.position.updates}: "
            "give --resume to continue from there, or another folder"
        )
    if (model := notes.get("model")) != settings.model:
        saved = f"--model {model}" if model else "the course's LSTM, without --model"
        raise CheckpointError(f"{folder} was saved with {saved}: continue with the same, or give another folder")
    for name, saved in notes.get("order", {}).items():
        if settings.order.get(name) != saved:
            raise CheckpointError(
                f"{folder} was saved with {name}={saved}: continue with the same, "
                "or the run would skip some of the data and see some of it twice"
            )
