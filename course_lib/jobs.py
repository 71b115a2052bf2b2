"""The lessons' jobs, as functions to run from the command line.

course run course_lib.jobs:adding --ranks 2 strategy=ddp hidden=512 layers=4
"""

from __future__ import annotations

from functools import partial

import torch

from course_lib.data import AddingProblem, ShardedBatches
from course_lib.loss import squared_error
from course_lib.model import lstm_model
from course_lib.strategies import DDP, Single
from course_lib.training import epochs, evaluate, train

STRATEGIES = {"single": Single, "ddp": DDP}


def adding(
    strategy: str = "single",
    updates: int = 300,
    batch: int = 64,
    lengths: tuple[int, int] = (5, 20),
    hidden: int = 64,
    layers: int = 1,
    learning_rate: float = 0.01,
    bfloat16: bool = False,
    seed: int = 0,
) -> dict[str, float]:
    """Train an LSTM on the adding problem; guessing gives an error of 1/6.

    `batch` counts the sequences of all ranks together. Returns the error on unseen sequences, and this rank's speed.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy}: choose {' or '.join(STRATEGIES)}")
    if bfloat16 and strategy != "single":
        raise ValueError(f"bfloat16 is there for strategy=single only, not for {strategy}")
    torch.manual_seed(seed)
    data = AddingProblem(20_000, lengths, seed=seed)
    model = lstm_model(features=2, hidden=hidden, layers=layers, outputs=1)
    options = {"autocast": torch.bfloat16} if bfloat16 else {}
    adam = partial(torch.optim.Adam, lr=learning_rate)
    trained = STRATEGIES[strategy](model, adam, squared_error, clip=1.0, **options)
    history = train(trained, epochs(data, ShardedBatches(len(data), batch, seed=seed)), updates=updates)
    unseen = AddingProblem(1_000, lengths, seed=seed + 1)
    error = evaluate(trained, [unseen.batch(range(start, start + 250)) for start in range(0, 1_000, 250)])
    return {"error": error, "tokens per second": history.tokens_per_second}
