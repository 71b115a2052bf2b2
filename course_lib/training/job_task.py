"""What a job trains on: the data that `course train --data` names, cut into batches, and the model for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tqdm.auto import tqdm

from course_lib.data import Corpus, CorpusError, ShardedBatches, TokenFile, open_tokens
from course_lib.lstm.model import lstm_model
from course_lib.training import tasks
from course_lib.training.checkpoint import on_rank_0
from course_lib.training.own import loss_for, names_a_function, own_data, own_model, sizes_of
from course_lib.training.settings import BadSettings, Settings

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
