"""The job that `course train` runs on every rank: a training run on this machine, on a cluster, or under torchrun.

launch(train_job, Settings("pipeline", updates=100, checkpoint="saved"), ranks=4, timeout=None)
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from course_lib import trace
from course_lib.data import Batch
from course_lib.launchers import RankFailed, Run, Slurm, launch, torchrun
from course_lib.launchers.process import progress_bar, stop
from course_lib.launchers.process.lifetime import seed_generators
from course_lib.launchers.process.progress_bar import Progress
from course_lib.lstm.model import untouched
from course_lib.machine import device, started_by_torchrun
from course_lib.settings import BadSettings, Settings
from course_lib.strategies import Strategy
from course_lib.strategies.base import GradientScaler, on_rank_0
from course_lib.strategies.registry import STRATEGIES, find_strategy, make_strategy, options_of
from course_lib.training import can_start
from course_lib.training.checkpoint import BackgroundSaver, load_checkpoint, save_checkpoint, writing_into
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError, Position, find_checkpoint
from course_lib.training.checkpoint.state import in_words
from course_lib.training.log import Log, LogError
from course_lib.training.loop import (
    BatchReader,
    StopAgreement,
    check_compiles,
    compile_blocks,
    profile_some,
    updates_on,
    with_input_waits,
)
from course_lib.training.metrics import MetricsLogger, NotFinite, check_weights, utilization_of
from course_lib.training.proof import check_blocks
from course_lib.training.tasks import check_same_data, fingerprint_of_all_ranks, make_task, prepare_data, seeded_model
from course_lib.training.user_code import check_runs

STREAMS = 1_000_003  # larger than any world size, so no two updates share a rank's seed


def train_job(settings: Settings, show: Callable[[Progress], None] = progress_bar.send) -> dict[str, Any]:
    """Train on all ranks, from the last checkpoint if there is one to resume. Every rank must call this.

    Rank 0 writes the log, and calls `show` with the progress. Returns the number of updates, the loss of the last one,
    and the tokens per second of the global batches; the `mfu`, if the devices' peak is known; the `mesh`, if the ranks
    form one; and what `stopped` the run, if a signal or a time limit did. A stopped run with checkpoints saves one
    before it ends.
    """
    folder = settings.checkpoint
    with contextlib.ExitStack() as stack:
        try:
            if folder is not None:
                on_rank_0(lambda: can_start.check_can_be_made(Path(folder)))
                stack.enter_context(writing_into(folder))
            job = _prepare(settings, show if dist.get_rank() == 0 else None)
        except ValueError as error:
            raise BadSettings(str(error)) from error
        stopped = _train(job)
    stop.request.obeyed = bool(stopped)
    metrics = job.metrics
    result = {"updates": metrics.updates, "loss": metrics.loss, "tokens per second": metrics.tokens_per_second}
    mesh = getattr(job.strategy, "mesh_in_words", "")  # the strategy might not be derived from ours
    details = {"stopped": stopped or None, "mfu": metrics.mfu, "mesh": mesh or None}
    return result | {name: value for name, value in details.items() if value is not None}


@dataclass(frozen=True)
class Job:
    """A run that is ready to start or resume."""

    settings: Settings
    strategy: Strategy
    reader: BatchReader
    metrics: MetricsLogger
    data: dict[str, Any]  # the fingerprint of the data


def _prepare(settings: Settings, show: Callable[[Progress], None] | None) -> Job:
    """Build the job, restored from the last checkpoint if there is one to resume. Only rank 0 has a `show`."""
    can_start.check_ranks(settings, dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"]))
    resumes = on_rank_0(lambda: can_start.checkpoint_to_resume(settings, started_by_torchrun())) is not None
    seed_generators(settings.seed)  # user data that draws random numbers must be the same on every rank
    task = make_task(settings)
    data = fingerprint_of_all_ranks(task, settings.data)
    reader = BatchReader(task.dataset, task.sampler)
    first_batch = next(iter(BatchReader(task.dataset, task.sampler)))
    model = seeded_model(task, settings.seed)
    make = make_strategy(settings.strategy, settings.learning_rate, settings.options, settings.precision)
    if settings.model:
        check_runs(model, settings.model, first_batch)
        if settings.strategy in STRATEGIES.keys() - {"single"}:  # one of your own may differ on purpose
            check_blocks(make, model, task.loss, first_batch)
    utilization = utilization_of(model, first_batch, settings.precision) if show else None
    if settings.compile:
        check_compiles(device())
        compile_blocks(model)
    if dist.get_rank() == 0 and "clip" not in options_of(find_strategy(settings.strategy)):
        print(f"{settings.strategy} has no option clip: it does not clip gradients to a norm of 1, unlike the others")
    strategy = make(model, loss=task.loss)
    if "micro_batches" in settings.options:
        _check_micro_batches(strategy, first_batch)
    _seed_stream(strategy, settings.seed)
    saved = _resume(strategy, reader, first_batch, settings, data) if resumes else None
    updates_done, loss = (saved.position.updates, saved.notes["loss"]) if saved else (0, float("nan"))
    log = Log(settings.log, after=updates_done) if show and settings.log else None
    metrics = MetricsLogger(updates_done, settings.updates, loss, log=log, show=show, utilization=utilization)
    return Job(settings, strategy, reader, metrics, data)


def _train(job: Job) -> str:
    """Run the remaining updates, unless the job is asked to stop first. Returns what stopped it, if anything."""
    settings, metrics = job.settings, job.metrics
    stops = StopAgreement(settings.time_limit) if settings.checkpoint else None
    stopped = ""
    remaining = settings.updates - metrics.updates
    updates = updates_on(job.strategy, job.reader, remaining)
    if settings.profile:
        updates = profile_some(updates_on(job.strategy, with_input_waits(job.reader), remaining), remaining)
    save: Callable[..., object] = save_checkpoint
    with contextlib.ExitStack() as stack:
        stack.enter_context(trace.paused())  # a run may take days: record no timeline
        if settings.checkpoint and settings.async_checkpoint:
            save = stack.enter_context(BackgroundSaver(agreed=(NotFinite,))).save
        for update in updates:
            metrics.add(update)
            is_last = metrics.updates == settings.updates
            stopped = stops.after_update() if stops and not is_last else ""
            if settings.checkpoint and (stopped or is_last or metrics.updates % settings.every == 0):
                _save(job, save)
            if stopped:
                break
    if stops:
        stops.close()
    return stopped


def _save(job: Job, save: Callable[..., object]) -> None:
    settings, metrics, reader = job.settings, job.metrics, job.reader
    metrics.flush()  # the log must cover the checkpoint; a resumed run drops later lines
    metrics.check_losses()
    check_weights(job.strategy, metrics.updates)
    position = Position(metrics.updates, reader.epoch, reader.batch)
    notes = {"loss": metrics.loss, "order": settings.order, "model": settings.model}
    notes |= {"data": job.data, "precision": settings.precision}
    if scaler := getattr(job.strategy, "scaler", None):  # the strategy might not be derived from ours
        notes["scaler"] = scaler.state()
    save(job.strategy, settings.checkpoint, position, notes=notes)
    metrics.skip_time()


def _check_micro_batches(strategy: Strategy, batch: Batch) -> None:
    """Refuse more micro-batches than a share has sequences: some would be empty in every update."""
    micro_batches, shares = getattr(strategy, "micro_batches", 1), getattr(strategy, "shares", 1)
    sequences = -(-batch.sequences // shares)
    if micro_batches > max(1, sequences):
        raise BadSettings(
            f"micro_batches={micro_batches}: a rank's share of the first batch has {sequences} sequences; give at most "
            "that many micro-batches, or larger batches"
        )


def _seed_stream(strategy: Strategy, seed: int, updates: int = 0) -> None:
    """Give each replica different random numbers, for dropout; `updates` changes them when a run resumes."""
    stream = getattr(strategy, "random_stream", dist.get_rank())  # the strategy might not be derived from ours
    seed_generators((seed + 1 + stream + STREAMS * updates) % 2**63)


def _resume(
    strategy: Strategy, reader: BatchReader, batch: Batch, settings: Settings, data: dict[str, Any]
) -> Checkpoint:
    """Restore the strategy and the reader from the last checkpoint."""
    with untouched(strategy.model):
        # torch's DDP reorders its messages after its first step, and with them its sums. So it takes the step that it
        # took before the save, and the load then overwrites all that the step has changed.
        strategy.step(strategy.share(batch))
    saved = load_checkpoint(strategy, settings.checkpoint or "")
    if not saved.same_layout:
        _seed_stream(strategy, settings.seed, saved.position.updates)
    check_same_data(saved, data)
    if scaler := getattr(strategy, "scaler", None):
        scaler.load(saved.notes.get("scaler", GradientScaler().state()))
    reader.epoch, reader.batch = saved.position.epoch, saved.position.batch
    if saved.position.updates > settings.updates:
        raise BadSettings(f"{saved.path} has {saved.position.updates} updates already: give --updates a larger number")
    if dist.get_rank() == 0:
        changes = ""
        if (precision := saved.notes.get("precision", settings.precision)) != settings.precision:
            changes = f", in {settings.precision} instead of {precision}"
        if not saved.same_layout:
            changes += f", saved by {in_words(saved.layout)} (random state, such as dropout, starts afresh)"
        print(f"resuming from update {saved.position.updates}{changes}")
    return saved


def launch_job(settings: Settings, ranks: int, on: Slurm | None = None) -> Run:
    """Run the job on `ranks` ranks of this machine or a cluster. Raises BadSettings if a rank rejects the settings.

    Raises NotFinite if the loss is not finite, and CheckpointError or LogError if the disk is full.
    """
    if on is not None and on.is_here():  # a node of a job, whose settings were checked at submission
        return launch(train_job, settings, ranks=ranks, timeout=None, on=on)
    can_start.check_settings(settings, ranks, may_restart=on is not None)
    if on is None:
        prepare_data(settings)
    with _running(settings, watches=on is not None):
        return launch(train_job, settings, ranks=ranks, timeout=None, on=on)


def run_job_as_rank(settings: Settings, peer_timeout: float | None = None) -> Run | None:
    """Run the job as one of torchrun's ranks; rank 0 draws the progress bar. The other ranks return None."""
    can_start.check_names(settings)  # before the ranks connect, which takes a while
    if os.environ["RANK"] == "0":
        prepare_data(settings)
    bar = progress_bar.ProgressBar(sys.__stderr__)
    try:
        with _running(settings):
            return torchrun.run_here(
                train_job, settings, show=bar.show, peer_timeout=peer_timeout, record=settings.profile
            )
    finally:
        bar.close()


def resume_hint(settings: Settings) -> str:
    """Return what to append to the message about an interrupted run: how to resume it."""
    try:
        saved, _ = find_checkpoint(settings.checkpoint, only_facts=True) if settings.checkpoint else (None, [])
    except (CheckpointError, OSError):
        return ""  # resuming will report the problem
    return f"; update {saved.position.updates} is saved, and --resume continues from there" if saved else ""


@contextlib.contextmanager
def _running(settings: Settings, watches: bool = False) -> Iterator[None]:
    """Inside this context, signals ask the job to save a checkpoint and stop. Without checkpoints, they just end it.

    A program that only watches a job does not stop it when its own terminal hangs up. For bad settings, a loss that is
    not finite, or a full disk, the error is raised without the ranks' stack traces.
    """
    signals = stop.FROM_A_SCHEDULER if watches else stop.SIGNALS
    try:
        with stop.asked_by_signals(*signals) if settings.checkpoint else contextlib.nullcontext():
            yield
    except RankFailed as error:
        if isinstance(error.exception, BadSettings | NotFinite | CheckpointError | LogError):
            raise error.exception from None
        raise
