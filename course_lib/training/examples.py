"""Small jobs from the lessons, as functions to run from the command line.

course run course_lib.training.examples:adding --ranks 2 strategy=ddp hidden=512 layers=4
course run course_lib.training.examples:sentences --ranks 4 strategy=pipeline schedule=wavefront chunks=8
"""

from __future__ import annotations

from typing import Any

import torch

from course_lib.data import AddingProblem, Corpus, load_of
from course_lib.strategies import Single, make_strategy
from course_lib.training import tasks
from course_lib.training.loop import epochs, evaluate, train


def adding(
    strategy: str = "single",
    updates: int = 300,
    batch: int = 64,
    lengths: tuple[int, int] = (5, 20),
    hidden: int = 64,
    layers: int = 1,
    learning_rate: float = 0.01,
    seed: int = 0,
    **options: Any,
) -> dict[str, float]:
    """Train an LSTM on the adding problem; guessing gives an error of 1/6.

    `batch` is the number of sequences over all ranks; `options` go to the strategy. Returns the error on unseen
    sequences, and this rank's speed.
    """
    make = make_strategy(strategy, learning_rate, options)
    task = tasks.adding(batch, lengths, hidden, layers, seed)
    trained = make(tasks.seeded_model(task, seed), loss=task.loss)
    history = train(trained, epochs(task.dataset, task.sampler), updates=updates)
    single = Single(task.model(), torch.optim.SGD, task.loss)
    single.model.load_state_dict(trained.full_state())  # the trained model may be split over many ranks
    unseen = AddingProblem(1_000, lengths, seed=seed + 1)
    error = evaluate(single, [unseen.batch(range(start, start + 250)) for start in range(0, 1_000, 250)])
    return {"error": error, "tokens per second": history.tokens_per_second}


def sentences(
    strategy: str = "single",
    updates: int = 100,
    tokens: int = 4096,
    bucketed: bool = True,
    hidden: int = 128,
    layers: int = 2,
    learning_rate: float = 0.003,
    seed: int = 0,
    **options: Any,
) -> dict[str, float]:
    """Train an LSTM to predict the next word in the Python documentation, whose sentences vary widely in length.

    `tokens` is the number of tokens per update over all ranks; `options` go to the strategy. Batches hold sentences of
    similar length, or random ones without `bucketed`. Returns the loss of the last 20 updates, the fraction of padding,
    and this rank's speed.
    """
    make = make_strategy(strategy, learning_rate, options)
    corpus = Corpus.from_python_docs(most_common=4_000)
    task = tasks.sentences(corpus, tokens, hidden, layers, seed, bucketed)
    padding = load_of(task.sampler.global_batches(), corpus.lengths).padding
    trained = make(tasks.seeded_model(task, seed), loss=task.loss)
    history = train(trained, epochs(task.dataset, task.sampler), updates=updates)
    return {"loss": history.smoothed()[-1], "padding": padding, "tokens per second": history.tokens_per_second}
