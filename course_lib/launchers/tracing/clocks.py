"""How far apart the clocks of the machines are, found out by asking rank 0 for the time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

QUESTIONS = 10  # of each machine: the quickest answer is the best


def clock_skew(store: Store, clock: Callable[[], float] = time.time) -> float:
    """Seconds to add to this machine's time of day to get rank 0's; for every rank to call.

    The first rank of each machine asks rank 0 several times. Of the quickest answer it is assumed that the way there
    took as long as the way back: the skew is wrong by at most half of the round trip. The store carries the questions,
    because with NCCL a message between two ranks would first set up a communicator.
    """
    machine, machines = int(os.environ.get("GROUP_RANK", "0")), int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    first_here = os.environ.get("LOCAL_RANK", "0") == "0"
    if machines <= 1:
        return 0.0
    if machine == 0:
        if first_here:
            _answer(store, machines, clock)
        return 0.0
    if first_here:
        store.set(f"skew/{machine}", repr(_ask(store, machine, clock)))
    return float(store.get(f"skew/{machine}"))


def _answer(store: Store, machines: int, clock: Callable[[], float]) -> None:
    for machine in range(1, machines):
        for number in range(QUESTIONS):
            store.get(f"skew/{machine}/question/{number}")
            store.set(f"skew/{machine}/answer/{number}", repr(clock()))


def _ask(store: Store, machine: int, clock: Callable[[], float]) -> float:
    answers = []
    for number in range(QUESTIONS):
        asked = clock()
        store.set(f"skew/{machine}/question/{number}", "?")
        there = float(store.get(f"skew/{machine}/answer/{number}"))
        answered = clock()
        answers.append((answered - asked, there - (asked + answered) / 2))
    return min(answers[1:])[1]  # the first question may have waited for its turn
