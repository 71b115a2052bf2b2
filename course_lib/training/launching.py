"""Start the job of `course train`: on this machine, on a Slurm cluster, or as one of torchrun's ranks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from course_lib.launchers import RankFailed, Run, Slurm, launch, torchrun
from course_lib.launchers.process import progress_bar, stop
from course_lib.training.checkpoint.folder import FACTS, CheckpointError, find_checkpoint
from course_lib.training.job import train_job
from course_lib.training.log import LogError
from course_lib.training.metrics import NotFinite
from course_lib.training.settings import BadSettings, Settings, check_numbers, check_settings
from course_lib.training.tasks import prepare_data


def launch_job(settings: Settings, ranks: int, on: Slurm | None = None) -> Run:
    """Run the job on `ranks` ranks of this machine or a cluster. Raises BadSettings if a rank rejects the settings.

    Raises NotFinite if the loss is not finite, and CheckpointError or LogError if the disk is full.
    """
    if on is not None and on.is_here():  # a node of a job, whose settings were checked at submission
        return launch(train_job, settings, ranks=ranks, timeout=None, on=on)
    check_settings(settings, ranks, may_restart=on is not None)
    if on is None:
        prepare_data(settings)
    with _sentences_without_stacks(), _stopped_by_signals(settings, watches=on is not None):
        return launch(train_job, settings, ranks=ranks, timeout=None, on=on)


def run_job_as_rank(settings: Settings, peer_timeout: float | None = None) -> Run | None:
    """Run the job as one of torchrun's ranks; rank 0 draws the progress bar. The other ranks return None."""
    check_numbers(settings, int(os.environ["WORLD_SIZE"]))  # before the ranks connect, which takes a while
    if os.environ["RANK"] == "0":
        prepare_data(settings)
    bar = progress_bar.Bar(sys.__stderr__)
    try:
        with _sentences_without_stacks(), _stopped_by_signals(settings):
            return torchrun.run_here(
                train_job, settings, show=bar.show, peer_timeout=peer_timeout, record=settings.profile
            )
    finally:
        bar.close()


def resume_hint(settings: Settings) -> str:
    """Return the end of the sentence that says a run was interrupted."""
    try:
        saved, _ = find_checkpoint(settings.checkpoint, only=(FACTS,)) if settings.checkpoint else (None, [])
    except (CheckpointError, OSError):
        return ""  # resuming will report the problem
    return f"; update {saved.position.updates} is saved, and --resume goes on from there" if saved else ""


def _stopped_by_signals(settings: Settings, watches: bool = False) -> contextlib.AbstractContextManager[None]:
    """Inside this context, signals ask the job to save a checkpoint and stop. Without checkpoints, they just end it.

    A program that only watches a job does not stop it when its own terminal hangs up.
    """
    signals = stop.FROM_A_SCHEDULER if watches else stop.SIGNALS
    return stop.asked_by_signals(*signals) if settings.checkpoint else contextlib.nullcontext()


@contextlib.contextmanager
def _sentences_without_stacks() -> Iterator[None]:
    """For bad settings, a loss that is not finite, or a full disk, raise the error without the ranks' stack traces."""
    try:
        yield
    except RankFailed as error:
        if isinstance(error.exception, BadSettings | NotFinite | CheckpointError | LogError):
            raise error.exception from None
        raise
