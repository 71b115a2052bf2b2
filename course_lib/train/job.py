"""The job that `course train` runs on every rank: a training run on this machine, on a cluster, or under torchrun.

launch(train_job, Settings("pipeline", updates=100, checkpoint="saved"), ranks=4, timeout=None)
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib.core.batch import Batch
from course_lib.core.model import untouched
from course_lib.core.proof import check_blocks
from course_lib.core.shards import local_part
from course_lib.core.strategy import GradientScaler, Strategy, on_rank_0
from course_lib.launcher.hangs.errors import RankFailed
from course_lib.launcher.jobs import torchrun
from course_lib.launcher.jobs.slurm import Slurm
from course_lib.launcher.jobs.target import find_yours, names_a_function
from course_lib.launcher.notebook.launch import launch
from course_lib.launcher.notebook.progress_bar import ProgressBar
from course_lib.launcher.notebook.run import Run
from course_lib.launcher.rank.lifetime import seed_generators
from course_lib.launcher.wire import progress
from course_lib.launcher.wire.progress import Progress
from course_lib.one_device.loop import BatchReader, updates_on
from course_lib.runtime import machine, stop, trace
from course_lib.runtime.words import memory_in_words
from course_lib.train.checkpoint.files import Checkpoint, CheckpointError, Position, find_checkpoint
from course_lib.train.checkpoint.save_and_load import BackgroundSaver, load_checkpoint, save_checkpoint, writing_into
from course_lib.train.checkpoint.state import in_words
from course_lib.train.log import Log, LogError, MetricsLogger, NotFinite, check_log
from course_lib.train.metrics import utilization_of
from course_lib.train.registry import STRATEGIES, checked_options, find_strategy, make_strategy, options_of
from course_lib.train.settings import BadSettings, Settings
from course_lib.train.tasks import MODELS, check_runs, fingerprint, make_task, prepare_data
from course_lib.train.updates import StopAgreement, compile_blocks, profile_some, with_input_waits
from course_lib.transformer.gpt import HEADS, needs_hidden

STREAMS = 1_000_003  # larger than any world size, so no two updates share a rank's seed
BYTES_PER_NUMBER = 4
TRAINED_NUMBERS = 4  # per parameter: the weight, its gradient, and two from Adam


def check_settings(settings: Settings, ranks: int, *, may_restart: bool = False) -> None:
    """Refuse a run that cannot start, before ranks start. The job itself checks what depends on the data.

    With `may_restart`, the same command starts and restarts the job, on other machines, so it may ask to resume before
    there is a checkpoint.
    """
    check_names(settings)
    check_ranks(settings, ranks, ranks_here=0 if may_restart else ranks)
    try:
        if settings.checkpoint is not None:
            folder = Path(settings.checkpoint)
            nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
            problem = "" if os.access(nearest, os.W_OK) else f"no permission to write to {nearest}"
            problem = problem if os.path.isdir(nearest) else f"{nearest} is a file"
            if problem:
                raise CheckpointError(f"{folder} cannot be created ({problem}): give another folder")
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
    per_layer = 4 * settings.hidden * (2 * settings.hidden + 2)  # four gates, from the input and the state, two biases
    required = copies * BYTES_PER_NUMBER * settings.layers * per_layer
    if required > available:
        raise BadSettings(
            f"hidden={settings.hidden} and layers={settings.layers} need {memory_in_words(required)} of memory, and "
            f"this machine has {memory_in_words(available)}: give smaller ones"
        )


def checkpoint_to_resume(settings: Settings, may_restart: bool) -> Checkpoint | None:
    """Return the checkpoint to resume from, if that was requested or the job was restarted.

    Refuses to resume without --resume, or with a different model or data order than the checkpoint has. Only its
    description is verified here; its tensors are verified when they are loaded.
    """
    folder = settings.checkpoint
    checkpoint, _ = find_checkpoint(folder, only_facts=True) if folder is not None else (None, [])
    if checkpoint is None:
        if settings.resume and not may_restart:
            raise CheckpointError(f"there is no checkpoint in {folder}: leave out --resume to start over")
        return None
    if not settings.resume and not machine.restarts():
        raise CheckpointError(
            f"{folder} has a checkpoint of update {checkpoint.position.updates}: "
            "give --resume to continue from there, or another folder"
        )
    if (model := checkpoint.notes.get("model")) != settings.model:
        saved = f"--model {model}" if model else "the course's LSTM, without --model"
        raise CheckpointError(f"{folder} was saved with {saved}: continue with the same, or give another folder")
    for name, saved in checkpoint.notes.get("order", {}).items():
        if settings.order.get(name) != saved:
            raise CheckpointError(
                f"{folder} was saved with {name}={saved}: continue with the same, "
                "or the run would skip some of the data and see some of it twice"
            )
    return checkpoint


def train_job(settings: Settings, show: Callable[[Progress], None] = progress.send) -> dict[str, Any]:
    """Train on all ranks, from the last checkpoint if there is one to resume. Every rank must call this.

    Rank 0 writes the log, and calls `show` with the progress. Returns the number of updates, the loss of the last one,
    and the tokens per second of the global batches; the `mfu`, if the devices' peak is known; the `mesh`, if the ranks
    form one; and what `stopped` the run, if a signal or a time limit did. A stopped run with checkpoints saves one
    before it ends.
    """
    with contextlib.ExitStack() as stack:
        try:
            if settings.checkpoint is not None:
                stack.enter_context(writing_into(settings.checkpoint))
            job = Job(settings, show if dist.get_rank() == 0 else None)
        except ValueError as error:
            raise BadSettings(str(error)) from error
        stopped = job.train()
    stop.request.obeyed = bool(stopped)
    metrics = job.metrics
    result = {"updates": metrics.updates, "loss": metrics.loss, "tokens per second": metrics.tokens_per_second}
    mesh = getattr(job.strategy, "mesh_in_words", "")
    details = {"stopped": stopped or None, "mfu": metrics.mfu, "mesh": mesh or None}
    return result | {name: value for name, value in details.items() if value is not None}


class Job:
    """A run that is ready to start, or restored from the last checkpoint. Only rank 0 has a `show`."""

    def __init__(self, settings: Settings, show: Callable[[Progress], None] | None) -> None:
        self.settings = settings
        check_ranks(settings, dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"]))
        resumes = on_rank_0(lambda: checkpoint_to_resume(settings, machine.started_by_torchrun())) is not None
        seed_generators(settings.seed)  # user data that draws random numbers must be the same on every rank
        task = make_task(settings)
        self.notes = {"order": settings.order, "model": settings.model, "precision": settings.precision}
        self.notes["data"] = fingerprint(task, settings.data)
        self.reader = BatchReader(task.dataset, task.sampler)
        first_batch = next(iter(BatchReader(task.dataset, task.sampler)))
        torch.manual_seed(settings.seed)
        model = task.model()
        make = make_strategy(settings.strategy, settings.learning_rate, settings.options, settings.precision)
        if settings.model:
            check_runs(model, settings.model, first_batch)
            if settings.strategy in STRATEGIES.keys() - {"single"}:  # one of your own may differ on purpose
                check_blocks(make, model, task.loss, first_batch)
        on_gpu = machine.device().type == "cuda"
        utilization = utilization_of(model, first_batch, settings.precision) if show and on_gpu else None
        if settings.compile:
            compile_blocks(model)
        if dist.get_rank() == 0 and "clip" not in options_of(find_strategy(settings.strategy)):
            does_not = "it does not clip gradients to a norm of 1, unlike the others"
            print(f"{settings.strategy} has no option clip: {does_not}")
        self.strategy: Strategy = make(model, loss=task.loss)
        micro_batches = getattr(self.strategy, "micro_batches", 1)  # it might not be derived from ours
        sequences = -(-first_batch.sequences // getattr(self.strategy, "shares", 1))
        if "micro_batches" in settings.options and micro_batches > max(1, sequences):  # some would always be empty
            raise BadSettings(
                f"micro_batches={micro_batches}: a rank's share of the first batch has {sequences} sequences; give at "
                "most that many micro-batches, or larger batches"
            )
        self.seed_stream(0)
        updates, loss = self.resume(first_batch) if resumes else (0, float("nan"))
        log = Log(settings.log, after=updates) if show and settings.log else None
        self.metrics = MetricsLogger(updates, settings.updates, loss, log=log, show=show, utilization=utilization)

    def seed_stream(self, updates: int) -> None:
        """Give each replica different random numbers, for dropout; `updates` changes them when a run resumes."""
        stream = getattr(self.strategy, "random_stream", dist.get_rank())
        seed_generators((self.settings.seed + 1 + stream + STREAMS * updates) % 2**63)

    def resume(self, first_batch: Batch) -> tuple[int, float]:
        """Restore the strategy and the reader from the last checkpoint. Returns its updates and its loss."""
        settings, strategy = self.settings, self.strategy
        with untouched(strategy.model):
            # torch's DDP reorders its messages after its first step, and with them its sums. So it takes the step that
            # it took before the save, and the load then overwrites all that the step has changed.
            strategy.step(strategy.share(first_batch))
        saved = load_checkpoint(strategy, settings.checkpoint or "")
        position, data, now = saved.position, saved.notes.get("data"), self.notes["data"]
        if data not in (None, now):
            size = f" ({data['batches']:,} batches in an epoch, now {now['batches']:,})"
            raise CheckpointError(
                f"{saved.path} was trained on different data{size if data['batches'] != now['batches'] else ''}: "
                "continue with the same data, or start over in another folder"
            )
        if position.updates > settings.updates:
            raise BadSettings(f"{saved.path} has {position.updates} updates already: give --updates a larger number")
        if not saved.same_layout:
            self.seed_stream(position.updates)
        if scaler := getattr(strategy, "scaler", None):
            scaler.load(saved.notes.get("scaler", GradientScaler().state()))
        self.reader.epoch, self.reader.batch = position.epoch, position.batch
        changes = ""
        if (precision := saved.notes.get("precision", settings.precision)) != settings.precision:
            changes = f", in {settings.precision} instead of {precision}"
        if not saved.same_layout:
            changes += f", saved by {in_words(saved.layout)} (random state, such as dropout, starts afresh)"
        if dist.get_rank() == 0:
            print(f"resuming from update {position.updates}{changes}")
        return position.updates, saved.notes["loss"]

    def train(self) -> str:
        """Run the remaining updates, unless the job is asked to stop first. Returns what stopped it, if anything."""
        settings, metrics, stopped = self.settings, self.metrics, ""
        stops = StopAgreement(settings.time_limit) if settings.checkpoint else None
        remaining = settings.updates - metrics.updates
        updates = updates_on(self.strategy, self.reader, remaining)
        if settings.profile:
            updates = profile_some(updates_on(self.strategy, with_input_waits(self.reader), remaining), remaining)
        write: Callable[..., object] = save_checkpoint
        with contextlib.ExitStack() as stack:
            stack.enter_context(trace.paused())  # a run may take days: record no timeline
            if settings.checkpoint and settings.async_checkpoint:
                write = stack.enter_context(BackgroundSaver(agreed=(NotFinite,))).save
            for update in updates:
                metrics.add(update)
                is_last = metrics.updates == settings.updates
                stopped = stops.after_update() if stops and not is_last else ""
                if settings.checkpoint and (stopped or is_last or metrics.updates % settings.every == 0):
                    self.save(write)
                if stopped:
                    break
        if stops:
            stops.close()
        return stopped

    def save(self, write: Callable[..., object]) -> None:
        """Save a checkpoint with `write`, unless the loss or a weight is not finite."""
        self.metrics.flush()  # the log must cover the checkpoint; a resumed run drops later lines
        self.metrics.check_losses()
        check_weights(self.strategy, self.metrics.updates)
        position = Position(self.metrics.updates, self.reader.epoch, self.reader.batch)
        notes = self.notes | {"loss": self.metrics.loss}
        if scaler := getattr(self.strategy, "scaler", None):
            notes["scaler"] = scaler.state()
        write(self.strategy, self.settings.checkpoint, position, notes=notes)
        self.metrics.skip_time()


def check_weights(strategy: Strategy, update: int) -> None:
    """Raise NotFinite, on all ranks, if any rank has a weight that is not finite, which a finite loss can hide."""
    is_finite = [local_part(shard.tensor).isfinite().all().cpu() for shard in strategy.shards().values()]
    everywhere = torch.tensor(all(is_finite), dtype=torch.uint8, device=strategy.device)
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
    if not everywhere:
        raise NotFinite(f"the weights after update {update} are not finite: give a smaller --learning-rate")


def launch_job(settings: Settings, ranks: int, on: Slurm | None = None) -> Run:
    """Run the job on `ranks` ranks of this machine or a cluster. Raises BadSettings if a rank rejects the settings.

    Raises NotFinite if the loss is not finite, and CheckpointError or LogError if the disk is full.
    """
    if on is not None and on.is_here():  # a node of a job, whose settings were checked at submission
        return launch(train_job, settings, ranks=ranks, timeout=None, on=on)
    check_settings(settings, ranks, may_restart=on is not None)
    if on is None:
        prepare_data(settings)
    with _running(settings, watches=on is not None):
        return launch(train_job, settings, ranks=ranks, timeout=None, on=on)


def run_job_as_rank(settings: Settings, peer_timeout: float | None = None) -> Run | None:
    """Run the job as one of torchrun's ranks; rank 0 draws the progress bar. The other ranks return None."""
    check_names(settings)  # before the ranks connect, which takes a while
    bar = ProgressBar(sys.__stderr__)
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
