"""What a job trains on: the data that `course train --data` names, cut into batches, and the model for it.

A fingerprint, made from the size of the data and a sample, identifies it: a run is resumed with the same data, or not
at all.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from tqdm.auto import tqdm

from course_lib.data import Batch, Corpus, CorpusError, ShardedBatches, TokenFile, open_tokens
from course_lib.launchers.process.lifetime import seed_generators
from course_lib.lstm.model import lstm_model
from course_lib.training import tasks
from course_lib.training.checkpoint import on_rank_0
from course_lib.training.checkpoint.folder import Checkpoint, CheckpointError
from course_lib.training.own import BadFunction, loss_for, names_a_function, own_data, own_model, sizes_of
from course_lib.training.settings import BadSettings, Settings
from course_lib.training.tasks import Task

SAMPLED = 8  # batches, from the first to the last of an epoch


def fingerprint(task: Task) -> dict[str, Any]:
    """How many batches an epoch has, and a hash of some of them."""
    task.sampler.set_epoch(0)
    batches = task.sampler.global_batches()
    places = sorted({place * (len(batches) - 1) // max(1, SAMPLED - 1) for place in range(SAMPLED)})
    found = hashlib.sha256()
    for place in places:
        found.update(_bytes(task.dataset.batch(batches[place])))
    return {"batches": len(batches), "sample": found.hexdigest()[:16]}


def check_draws_nothing(task: Task, name: str) -> None:
    """Refuse data whose batches change with the random numbers of the rank that reads them."""
    task.sampler.set_epoch(0)
    first, read = task.sampler.global_batches()[0], []
    for seed in (1, 2):
        seed_generators(seed)
        read.append(_bytes(task.dataset.batch(first)))
    if read[0] != read[1]:
        raise BadFunction(
            f"--data {name} draws random numbers when a batch is read, so each rank would read a different batch: draw "
            "them when the data is made, or from a generator seeded with the examples' numbers"
        )


def _bytes(batch: Batch) -> bytes:
    tensors = (batch.inputs, batch.targets, batch.lengths, batch.mask)
    flat = (tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors)
    return b"".join([*(repr(tuple(tensor.shape)).encode() for tensor in tensors), *flat])


def fingerprint_of_all_ranks(task: Task, name: str) -> dict[str, Any]:
    """The data's fingerprint; refuses data that is not the same on every rank."""
    check_draws_nothing(task, name)
    ours = fingerprint(task)
    if on_rank_0(lambda: ours) != ours:
        raise BadFunction(
            f"--data {name} gives this rank other examples than rank 0: make them the same on every rank, from a fixed "
            "seed or a file"
        )
    return ours


def check_same_data(saved: Checkpoint, ours: dict[str, Any]) -> None:
    """Refuse to go on with other data than a checkpoint has seen."""
    theirs = saved.notes.get("data", ours)
    if theirs == ours:
        return
    size = f" ({theirs['batches']:,} batches in an epoch, now {ours['batches']:,})"
    raise CheckpointError(
        f"{saved.path} was trained on other data than this{size if theirs['batches'] != ours['batches'] else ''}: go "
        "on with the same, or begin anew in another folder"
    )


MOST_COMMON = 4_000  # words of a text that have a number of their own


def make_task(settings: Settings) -> tasks.Task:
    """The dataset, its sampler, and a function that makes the model; for every rank to call."""
    task = _task_of_data(settings)
    return replace(task, model=partial(own_model, settings.model, task.sizes)) if settings.model else task


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
