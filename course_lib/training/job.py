"""The job that `course train` runs on every rank: a whole training run, with checkpoints and a log.

launch(train_job, Settings("pipeline", updates=100, checkpoint="saved"), ranks=4, timeout=None)
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tqdm.auto import tqdm

from course_lib import trace
from course_lib.data import Batch, Corpus, CorpusError, ShardedBatches, TokenFile, open_tokens
from course_lib.launchers import RankFailed, Run, Slurm, launch, torchrun
from course_lib.launchers.process import progress_bar, stop
from course_lib.launchers.process.progress_bar import Progress
from course_lib.lstm.loss import Loss
from course_lib.lstm.model import SequenceModel, lstm_model
from course_lib.machine import device
from course_lib.strategies import Strategy, make_strategy
from course_lib.strategies.precision import GradientScaler
from course_lib.training import tasks
from course_lib.training.background_save import BackgroundSaver
from course_lib.training.checkpoint import load_checkpoint, on_rank_0, save_checkpoint, writing_into
from course_lib.training.checkpoint_folder import FACTS, Checkpoint, CheckpointError, Position, find_checkpoint
from course_lib.training.checkpoint_lock import WriterLock
from course_lib.training.compiling import check_compiles, compile_blocks
from course_lib.training.log import Log, LogError
from course_lib.training.loop import BatchReader, updates_on
from course_lib.training.metrics import MetricsLogger, NotFinite, check_weights
from course_lib.training.own import check_runs, loss_for, names_a_function, own_data, own_model, sizes_of
from course_lib.training.profiling import profile_some, with_input_waits
from course_lib.training.settings import (
    BadSettings,
    Settings,
    check_can_be_made,
    check_memory,
    check_numbers,
    check_settings,
    checkpoint_to_resume,
)
from course_lib.training.stopping import StopAgreement
from course_lib.training.tensorboard import TensorboardLog
from course_lib.training.utilization import utilization_of

MOST_COMMON = 4_000  # words of a text that have a number of their own


def train_job(settings: Settings, show: Callable[[Progress], None] = progress_bar.send) -> dict[str, Any]:
    """Train on all ranks, from the last checkpoint on if there is one to resume; for every rank to call.

    Rank 0 writes the log, and calls `show` with how far the run is. Returns the updates done, the loss of the last
    one, and the global batches' tokens per second; where the devices' peak is known, the `mfu`; and what it was
    `stopped` by, if it was: a signal or a time limit, after which a run with checkpoints saves one and ends.
    """
    with _locked_folder(settings) as lock:
        return _train(settings, show, lock)


def _train(settings: Settings, show: Callable[[Progress], None], lock: WriterLock | None) -> dict[str, Any]:
    is_rank_0 = dist.get_rank() == 0
    try:
        check_numbers(settings, dist.get_world_size())
        check_memory(settings, int(os.environ["LOCAL_WORLD_SIZE"]))
        resumes = on_rank_0(lambda: checkpoint_to_resume(settings, torchrun.started_by_torchrun())) is not None
        task = _task(settings)
        reader = BatchReader(task.dataset, task.sampler)
        first = next(iter(BatchReader(task.dataset, task.sampler)))
        model = tasks.seeded_model(task, settings.seed)
        if settings.model:
            check_runs(model, settings.model, first)
        utilization = utilization_of(model, first, settings.precision) if is_rank_0 else None
        if settings.compile:
            check_compiles(device())
            compile_blocks(model)
        strategy = _strategy(settings, model, task.loss)
        saved = _resume(strategy, reader, first, settings) if resumes else None
        done, loss = (saved.position.updates, saved.notes["loss"]) if saved else (0, float("nan"))
        log = Log(settings.log, after=done) if settings.log and is_rank_0 else None
        board = TensorboardLog(settings.tensorboard, after=done) if settings.tensorboard and is_rank_0 else None
    except ValueError as error:
        raise BadSettings(str(error)) from error
    show_here = show if is_rank_0 else None
    logs = {"log": log, "board": board, "show": show_here}
    metrics = MetricsLogger(done, settings.updates, loss, **logs, utilization=utilization)
    stops = StopAgreement(settings.time_limit) if settings.checkpoint else None
    stopped = ""
    with trace.paused(), _saving(settings) as save:  # nobody asked for a timeline of a run that may take days
        batches = with_input_waits(reader) if settings.profile else reader
        updates = updates_on(strategy, batches, settings.updates - done)
        for update in profile_some(updates, settings.updates - done) if settings.profile else updates:
            metrics.add(update)
            if lock and is_rank_0:
                lock.renew()
            is_last = metrics.updates == settings.updates
            stopped = stops.after_update() if stops and not is_last else ""
            if settings.checkpoint and (stopped or is_last or metrics.updates % settings.every == 0):
                metrics.flush()  # whatever a checkpoint has seen is in the log, and what is later will be dropped
                metrics.check_losses()
                check_weights(strategy, metrics.updates)
                position = Position(metrics.updates, reader.epoch, reader.batch)
                facts = {"loss": metrics.loss, "order": settings.order, "model": settings.model}
                notes = facts | _scaler_notes(strategy)
                save(strategy, settings.checkpoint, position, notes=notes, lock=lock)
                metrics.skip_time()
            if stopped:
                break
    if stops:
        stops.close()
    stop.request.obeyed = bool(stopped)
    result = {"updates": metrics.updates, "loss": metrics.loss, "tokens per second": metrics.tokens_per_second}
    known = {"stopped": stopped or None, "mfu": metrics.mfu}
    return result | {name: value for name, value in known.items() if value is not None}


def launch_job(settings: Settings, ranks: int, on: Slurm | None = None) -> Run:
    """The job on `ranks` ranks of this machine or a cluster. Raises BadSettings if a rank has found them to be bad.

    Raises NotFinite if the loss is no finite number any more, CheckpointError or LogError if the disk is full.
    """
    if on is not None and on.is_here():  # a node of a job, whose settings were checked when it was submitted
        return launch(train_job, settings, ranks=ranks, timeout=None, on=on)
    check_settings(settings, ranks, may_restart=on is not None)
    if on is None:
        prepare_data(settings)
    with _sentences_without_stacks(), _stopped_by_signals(settings, watches=on is not None):
        return launch(train_job, settings, ranks=ranks, timeout=None, on=on)


def run_job_as_rank(settings: Settings, peer_timeout: float | None = None) -> Run | None:
    """The job as one rank of torchrun's, with the bar drawn by rank 0. The other ranks return None."""
    check_numbers(settings, int(os.environ["WORLD_SIZE"]))  # before the ranks meet, which takes a while
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


@contextlib.contextmanager
def _saving(settings: Settings) -> Iterator[Callable[..., object]]:
    """In the block, a function that saves a checkpoint; at its end, all are whole."""
    if not (settings.checkpoint and settings.async_checkpoint):
        yield save_checkpoint
        return
    with BackgroundSaver(agreed=(NotFinite,)) as saver:
        yield saver.save


@contextlib.contextmanager
def _locked_folder(settings: Settings) -> Iterator[WriterLock | None]:
    """In the block, the folder of checkpoints is this job's, if it has one."""
    if settings.checkpoint is None:
        yield None
        return
    folder = Path(settings.checkpoint)
    with contextlib.ExitStack() as stack:
        try:
            on_rank_0(lambda: check_can_be_made(folder))
            lock = stack.enter_context(writing_into(folder))
        except CheckpointError as error:
            raise BadSettings(str(error)) from error
        yield lock


def _stopped_by_signals(settings: Settings, watches: bool = False) -> contextlib.AbstractContextManager[None]:
    """In the block, signals ask the job to save what it has. One that saves nothing they end, as any program.

    A program that only watches a job leaves it alone when it is hung up itself.
    """
    signals = stop.FROM_A_SCHEDULER if watches else stop.SIGNALS
    return stop.asked_by_signals(*signals) if settings.checkpoint else contextlib.nullcontext()


def resume_hint(settings: Settings) -> str:
    """The end of the sentence that says a run was interrupted."""
    try:
        saved, _ = find_checkpoint(settings.checkpoint, only=(FACTS,)) if settings.checkpoint else (None, [])
    except (CheckpointError, OSError):
        return ""  # whoever resumes is told
    return f"; update {saved.position.updates} is saved, and --resume goes on from there" if saved else ""


def _task(settings: Settings) -> tasks.Task:
    task = _task_of_data(settings)
    return replace(task, model=partial(own_model, settings.model, task.sizes)) if settings.model else task


def _task_of_data(settings: Settings) -> tasks.Task:
    size = (settings.hidden, settings.layers)
    if settings.data == "adding":
        return tasks.adding(settings.batch, (5, 20), *size, settings.seed)
    if settings.data == "text":
        corpus = Corpus.from_python_docs(most_common=MOST_COMMON)
    elif names_a_function(settings.data):
        corpus = own_data(settings.data)
        if not isinstance(corpus, Corpus | TokenFile):
            return _task_of_own_data(settings, corpus)
    else:
        corpus = _tokens_of_all_ranks(settings.data)
    if settings.options.get("carry_state"):
        return tasks.streams(corpus, settings.tokens, *size)
    return tasks.sentences(corpus, settings.tokens, *size, settings.seed)


def _task_of_own_data(settings: Settings, data: Any) -> tasks.Task:
    if settings.options.get("carry_state"):
        raise BadSettings(f"carry_state=True: examples of {settings.data} have nothing to carry; return a Corpus there")
    sizes = sizes_of(data, settings.data, has_model=settings.model is not None)
    sizes |= {"hidden": settings.hidden, "layers": settings.layers}
    sampler = ShardedBatches(len(data), settings.batch, seed=settings.seed)
    return tasks.Task(data, sampler, partial(lstm_model, **sizes), loss_for(data), sizes)


def prepare_data(settings: Settings) -> None:
    """Make the tokens of a text file before the ranks start, if they are not there yet, with a bar."""
    if settings.data in ("adding", "text") or names_a_function(settings.data):
        return
    with tqdm(desc="tokens", unit="B", unit_scale=True, leave=False, disable=None) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        try:
            open_tokens(settings.data, MOST_COMMON, show)
        except CorpusError as error:
            raise BadSettings(str(error)) from error


def _tokens_of_all_ranks(path: str) -> TokenFile:
    """Rank 0 makes the tokens if they are not there yet; the others then find them, where they see the same folder."""

    def refusal() -> CorpusError | None:
        try:
            open_tokens(path, MOST_COMMON)
        except CorpusError as error:
            return error

    if error := on_rank_0(refusal):
        raise error
    return open_tokens(path, MOST_COMMON)


def _strategy(settings: Settings, model: SequenceModel, loss: Loss) -> Strategy:
    make = make_strategy(settings.strategy, settings.learning_rate, settings.strategy_options, settings.precision)
    return make(model, loss=loss)


def _resume(strategy: Strategy, reader: BatchReader, first: Batch, settings: Settings) -> Checkpoint:
    """Put strategy and reader where the last checkpoint left off."""
    strategy.step(strategy.share(first))  # overwritten at once: see `load_checkpoint`
    saved = load_checkpoint(strategy, settings.checkpoint or "")
    if scaler := getattr(strategy, "scaler", None):
        scaler.load(saved.notes.get("scaler", GradientScaler().state()))
    reader.epoch, reader.batch = saved.position.epoch, saved.position.batch
    if saved.position.updates > settings.updates:
        raise BadSettings(f"{saved.path} has {saved.position.updates} updates already: give --updates a larger number")
    if dist.get_rank() == 0:
        print(f"going on from update {saved.position.updates}")
    return saved


def _scaler_notes(strategy: Strategy) -> dict[str, Any]:
    scaler = getattr(strategy, "scaler", None)  # a strategy need not be derived from ours
    return {"scaler": scaler.state()} if scaler else {}


@contextlib.contextmanager
def _sentences_without_stacks() -> Iterator[None]:
    """Where the settings are bad, or the loss, or the disk, the sentence is enough, without the ranks' stacks."""
    try:
        yield
    except RankFailed as error:
        if isinstance(error.exception, BadSettings | NotFinite | CheckpointError | LogError):
            raise error.exception from None
        raise
