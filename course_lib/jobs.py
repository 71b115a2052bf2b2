"""The lessons' jobs, as functions to run from the command line.

course run course_lib.jobs:adding --ranks 1 hidden=512 layers=4
"""

from __future__ import annotations

from functools import partial

import torch

from course_lib.data import AddingProblem, ShardedBatches
from course_lib.loss import squared_error
from course_lib.model import lstm_model
from course_lib.strategies import DDP, Single
from course_lib.training import epochs, evaluate, train


def adding(
    updates: int = 300,
    batch: int = 64,
    lengths: tuple[int, int] = (5, 20),
    hidden: int = 64,
    layers: int = 1,
    learning_rate: float = 0.01,
    bfloat16: bool = False,
    seed: int = 0,
) -> dict[str, float]:
    """Lesson 01: train an LSTM on the adding problem, on one device. Guessing gives an error of 1/6."""
    torch.manual_seed(seed)
    data = AddingProblem(20_000, lengths, seed=seed)
    model = lstm_model(features=2, hidden=hidden, layers=layers, outputs=1)
    precision = torch.bfloat16 if bfloat16 else None
    strategy = Single(model, partial(torch.optim.Adam, lr=learning_rate), squared_error, clip=1.0, autocast=precision)
    history = train(strategy, epochs(data, ShardedBatches(len(data), batch, seed=seed)), updates=updates)
    unseen = AddingProblem(1_000, lengths, seed=seed + 1)
    error = evaluate(strategy, [unseen.batch(range(start, start + 250)) for start in range(0, 1_000, 250)])
    return {"error": error, "tokens per second": history.tokens_per_second}


def adding_ddp(
    updates: int = 300,
    batch: int = 64,
    lengths: tuple[int, int] = (5, 20),
    hidden: int = 64,
    layers: int = 1,
    learning_rate: float = 0.01,
    seed: int = 0,
) -> dict[str, float]:
    """Lesson 02: the same by data parallelism. `batch` counts the sequences of all ranks together."""
    torch.manual_seed(seed)
    data = AddingProblem(20_000, lengths, seed=seed)
    model = lstm_model(features=2, hidden=hidden, layers=layers, outputs=1)
    strategy = DDP(model, partial(torch.optim.Adam, lr=learning_rate), squared_error, clip=1.0)
    history = train(strategy, epochs(data, ShardedBatches(len(data), batch, seed=seed)), updates=updates)
    return {"loss": history.smoothed(20)[-1], "tokens per second of this rank": history.tokens_per_second}
