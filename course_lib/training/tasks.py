"""What to train on: the data, the order in which it is read, a model that fits it, and the loss.

`course train --data` names a job's data. A fingerprint, made from the size of the data and a sample, identifies it: a
run resumes with the same data, or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tqdm.auto import tqdm

from course_lib.data import (
    AddingProblem,
    Batch,
    BucketedBatches,
    Corpus,
    CorpusError,
    ShardedBatches,
    Streams,
    TokenFile,
    open_tokens,
)
from course_lib.data.samplers import Batches
from course_lib.launchers.process.lifetime import seed_generators
from course_lib.launchers.target import BadJob, names_a_function
from course_lib.lstm.model import Loss, SequenceModel, cross_entropy, lstm_model
from course_lib.settings import BadSettings, Settings
from course_lib.strategies.base import on_rank_0
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError
from course_lib.training.user_code import loss_for, sizes_of, user_data, user_model

WINDOW = 32  # steps of a stream before the gradient stops
MOST_COMMON = 4_000  # the number of words in a text's vocabulary
SAMPLED = 8  # batches in a fingerprint, spread over an epoch


@dataclass(frozen=True)
class TrainingTask:
    """A dataset that makes batches from indices, a sampler that chooses them, a model factory, and a loss."""

    dataset: Any
    sampler: Batches
    model: Callable[[], SequenceModel]
    loss: Loss


@dataclass(frozen=True)
class Windows:
    """Streams as a dataset: batch `[i]` is window i."""

    streams: Streams

    def batch(self, indices: Sequence[int]) -> Batch:
        (index,) = indices
        return self.streams[index]


def make_task(settings: Settings) -> TrainingTask:
    """Return the dataset, its sampler, and a function that makes the model. Every rank must call this."""
    data, carries = _data_of(settings), settings.options.get("carry_state")
    is_text = isinstance(data, Corpus | TokenFile)
    if carries and not is_text:
        raise BadSettings(f"carry_state=True: examples of {settings.data} have nothing to carry; return a Corpus there")
    if is_text:
        sizes = {"vocabulary": len(data.vocabulary)}
    else:
        sizes = sizes_of(data, settings.data, has_model=settings.model is not None)
    sizes |= {"hidden": settings.hidden, "layers": settings.layers}
    loss = cross_entropy if is_text else loss_for(data)
    if carries:
        data = Windows(Streams(data.tokens, streams=max(1, settings.tokens // WINDOW), window=WINDOW))
        sampler: Batches = ShardedBatches(len(data.streams), 1, shuffle=False)
    elif is_text:
        sampler = BucketedBatches(data.lengths, settings.tokens, seed=settings.seed)
    else:
        sampler = ShardedBatches(len(data), settings.batch, seed=settings.seed)
    if settings.model is None:
        return TrainingTask(data, sampler, partial(lstm_model, **sizes), loss)
    if settings.model == "gpt" and settings.options.get("chunks", 1) > 1:
        sizes["cache"] = True  # a chunk of time looks back at the chunks before it
    return TrainingTask(data, sampler, partial(user_model, settings.model, sizes), loss)


def _data_of(settings: Settings) -> Any:
    if settings.data == "adding":
        return AddingProblem(20_000, (5, 20), seed=settings.seed)
    if settings.data == "text":
        return Corpus.from_python_docs(most_common=MOST_COMMON)
    if names_a_function(settings.data):
        return user_data(settings.data)

    def refusal() -> CorpusError | None:
        try:
            open_tokens(settings.data, MOST_COMMON)
        except CorpusError as error:
            return error

    # Rank 0 tokenizes the text if needed; the others find the result if they see the same folder.
    if error := on_rank_0(refusal):
        raise error
    return open_tokens(settings.data, MOST_COMMON)


def prepare_data(settings: Settings) -> None:
    """Tokenize a text file before the ranks start, if needed, with a progress bar."""
    if settings.data in ("adding", "text") or names_a_function(settings.data):
        return
    with tqdm(desc="tokens", unit="B", unit_scale=True, leave=False, disable=None) as bar:

        def show(tokenized: int, total: int) -> None:
            bar.total = total
            bar.update(tokenized - bar.n)

        try:
            open_tokens(settings.data, MOST_COMMON, show)
        except CorpusError as error:
            raise BadSettings(str(error)) from error


def seeded_model(task: TrainingTask, seed: int) -> SequenceModel:
    """Return the task's model, with weights that depend only on the seed."""
    torch.manual_seed(seed)
    return task.model()


def fingerprint(task: TrainingTask) -> dict[str, Any]:
    """Return the number of batches in an epoch, and a hash of some of them."""
    task.sampler.set_epoch(0)
    batches = task.sampler.global_batches()
    places = sorted({place * (len(batches) - 1) // max(1, SAMPLED - 1) for place in range(SAMPLED)})
    digest = hashlib.sha256()
    for place in places:
        digest.update(_bytes(task.dataset.batch(batches[place])))
    return {"batches": len(batches), "sample": digest.hexdigest()[:16]}


def check_draws_nothing(task: TrainingTask, name: str) -> None:
    """Refuse data whose batches depend on the random numbers of the rank that reads them."""
    task.sampler.set_epoch(0)
    indices, readings = task.sampler.global_batches()[0], []
    for seed in (1, 2):
        seed_generators(seed)
        readings.append(_bytes(task.dataset.batch(indices)))
    if readings[0] != readings[1]:
        raise BadJob(
            f"--data {name} draws random numbers when a batch is read, so each rank would read a different batch: draw "
            "them when the data is created, or from a generator seeded with the examples' indices"
        )


def _bytes(batch: Batch) -> bytes:
    tensors = (batch.inputs, batch.targets, batch.lengths, batch.mask)
    flat = (tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors)
    return b"".join([*(repr(tuple(tensor.shape)).encode() for tensor in tensors), *flat])


def fingerprint_of_all_ranks(task: TrainingTask, name: str) -> dict[str, Any]:
    """Return the data's fingerprint; refuse data that is not the same on every rank."""
    check_draws_nothing(task, name)
    local = fingerprint(task)
    if on_rank_0(lambda: local) != local:
        raise BadJob(
            f"--data {name} gives this rank different examples than rank 0: make them the same on every rank, from a "
            "fixed seed or a file"
        )
    return local


def check_same_data(saved: Checkpoint, current: dict[str, Any]) -> None:
    """Refuse to continue with different data than the checkpoint was trained on."""
    saved_data = saved.notes.get("data", current)
    if saved_data == current:
        return
    size = f" ({saved_data['batches']:,} batches in an epoch, now {current['batches']:,})"
    raise CheckpointError(
        f"{saved.path} was trained on different data{size if saved_data['batches'] != current['batches'] else ''}: "
        "continue with the same data, or start over in another folder"
    )
