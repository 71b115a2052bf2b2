"""What there is to train on: the data, the order in which it is read, the model that fits it, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy
import torch

from course_lib.data import AddingProblem, Batch, BucketedBatches, Corpus, ShardedBatches, Streams, TokenFile
from course_lib.data.samplers import Batches
from course_lib.lstm.model import Loss, SequenceModel, cross_entropy, lstm_model, squared_error

WINDOW = 32  # steps of a stream that are read before the gradient stops


@dataclass(frozen=True)
class Task:
    """A dataset that makes batches of indices, a sampler that chooses them, a maker of models, and a loss."""

    dataset: Any
    sampler: Batches
    model: Callable[[], SequenceModel]
    loss: Loss
    sizes: Mapping[str, int] = field(default_factory=dict)  # what a model must know of the data, and what was asked for


def adding(batch: int, lengths: tuple[int, int], hidden: int, layers: int, seed: int) -> Task:
    """The adding problem, `batch` sequences at a time."""
    data = AddingProblem(20_000, lengths, seed=seed)
    sizes = {"features": 2, "outputs": 1, "hidden": hidden, "layers": layers}
    sampler = ShardedBatches(len(data), batch, seed=seed)
    return Task(data, sampler, partial(lstm_model, **sizes), squared_error, sizes)


def sentences(
    corpus: Corpus | TokenFile, tokens: int, hidden: int, layers: int, seed: int, bucketed: bool = True
) -> Task:
    """The next word of a text's sentences, about `tokens` at a time, of similar length or, not `bucketed`, any."""
    sampler: Batches = BucketedBatches(corpus.lengths, tokens, seed=seed)
    if not bucketed:
        mean = numpy.asarray(corpus.lengths).mean()
        sampler = ShardedBatches(len(corpus.lengths), max(1, round(tokens / mean)), seed=seed)
    sizes = {"vocabulary": len(corpus.vocabulary), "hidden": hidden, "layers": layers}
    return Task(corpus, sampler, partial(lstm_model, **sizes), cross_entropy, sizes)


def streams(corpus: Corpus | TokenFile, tokens: int, hidden: int, layers: int) -> Task:
    """The next word of a text that is read by several readers at once, for a state that is carried along."""
    windows = Windows(Streams(corpus.tokens, streams=max(1, tokens // WINDOW), window=WINDOW))
    sizes = {"vocabulary": len(corpus.vocabulary), "hidden": hidden, "layers": layers}
    sampler = ShardedBatches(len(windows.streams), 1, shuffle=False)
    return Task(windows, sampler, partial(lstm_model, **sizes), cross_entropy, sizes)


@dataclass(frozen=True)
class Windows:
    """Streams as a dataset: batch `[i]` is window i."""

    streams: Streams

    def batch(self, indices: Sequence[int]) -> Batch:
        (index,) = indices
        return self.streams[index]


def seeded_model(task: Task, seed: int) -> SequenceModel:
    """The task's model, with the weights that follow from the seed."""
    torch.manual_seed(seed)
    return task.model()
