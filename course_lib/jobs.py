"""The lessons' jobs, as functions to run from the command line.

course run course_lib.jobs:adding --ranks 2 strategy=ddp hidden=512 layers=4
course run course_lib.jobs:sentences --ranks 4 strategy=pipeline schedule=wavefront chunks=8
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch

from course_lib.data import AddingProblem, BucketedBatches, Corpus, ShardedBatches, load_of
from course_lib.loss import cross_entropy, squared_error
from course_lib.model import lstm_model
from course_lib.strategies import DDP, Accumulation, Hybrid, ModelParallel, Pipeline, Single, Strategy
from course_lib.training import epochs, evaluate, train

STRATEGIES = {
    "single": Single,
    "ddp": DDP,
    "accumulation": Accumulation,
    "model": ModelParallel,
    "pipeline": Pipeline,
    "hybrid": Hybrid,
}


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

    `batch` counts the sequences of all ranks together; `options` are the strategy's own. Returns the error on unseen
    sequences, and this rank's speed.
    """
    make = _maker(strategy, learning_rate, options)
    torch.manual_seed(seed)
    data = AddingProblem(20_000, lengths, seed=seed)
    make_model = partial(lstm_model, features=2, hidden=hidden, layers=layers, outputs=1)
    trained = make(make_model(), loss=squared_error)
    history = train(trained, epochs(data, ShardedBatches(len(data), batch, seed=seed)), updates=updates)
    whole = Single(make_model(), torch.optim.SGD, squared_error)
    whole.model.load_state_dict(trained.full_state())  # the trained one may be in parts, on many ranks
    unseen = AddingProblem(1_000, lengths, seed=seed + 1)
    error = evaluate(whole, [unseen.batch(range(start, start + 250)) for start in range(0, 1_000, 250)])
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
    """Train an LSTM to predict the next word of the Python documentation's sentences, of very different lengths.

    `tokens` counts those of all ranks together, per update; `options` are the strategy's own. Batches hold sentences
    of similar length, or, without `bucketed`, random ones. Returns the loss of the last 20 updates, the share of
    padding, and this rank's speed.
    """
    make = _maker(strategy, learning_rate, options)
    torch.manual_seed(seed)
    corpus = Corpus.from_python_docs(most_common=4_000)
    sampler = BucketedBatches(corpus.lengths, tokens, seed=seed)
    if not bucketed:
        sampler = ShardedBatches(len(corpus.lengths), max(1, round(tokens / sampler.lengths.mean())), seed=seed)
    padding = load_of(sampler.global_batches(), corpus.lengths).padding
    model = lstm_model(vocabulary=len(corpus.vocabulary), hidden=hidden, layers=layers)
    history = train(make(model, loss=cross_entropy), epochs(corpus, sampler), updates=updates)
    return {"loss": history.smoothed()[-1], "padding": padding, "tokens per second": history.tokens_per_second}


def _maker(strategy: str, learning_rate: float, options: dict[str, Any]) -> partial[Strategy]:
    """What makes the strategy of a model and a loss, with gradients clipped to a norm of 1."""
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy}: choose {', '.join(STRATEGIES)}")
    if options.pop("bfloat16", False):
        options["autocast"] = torch.bfloat16
    wants = inspect.signature(STRATEGIES[strategy]).parameters
    known = [name for name, parameter in wants.items() if parameter.kind is parameter.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise ValueError(f"strategy={strategy} has no option {name}: it takes {', '.join(known)}")
    for name in known:
        if wants[name].default is inspect.Parameter.empty and name not in options:
            raise ValueError(f"strategy={strategy} needs {name}: give it as {name}=4")
    adam = partial(torch.optim.Adam, lr=learning_rate)
    return partial(STRATEGIES[strategy], **{"optimizer": adam, "clip": 1.0, **options})
