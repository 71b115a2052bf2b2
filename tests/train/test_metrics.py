"""Losses are read when they are there: nobody waits for a GPU that is still at an update."""

from __future__ import annotations

import time

import pytest
import torch

from course_lib.train import log
from course_lib.train.log import CHECK_EVERY, NOT_YET_CHECKED, MetricsLogger, NotFinite, PendingLoss


class Event:
    """As `torch.cuda.Event`, with a GPU that gets no further by itself."""

    def __init__(self, copied: bool) -> None:
        self.copied, self.waited = copied, 0

    def query(self) -> bool:
        return self.copied

    def synchronize(self) -> None:
        self.waited += not self.copied
        self.copied = True


@pytest.fixture
def on_a_gpu(monkeypatch):
    """`add` takes what is given as update for a loss that is under way."""
    monkeypatch.setattr(PendingLoss, "start", lambda pending: pending)
    monkeypatch.setattr(log, "READ_EVERY", -1e9)  # seconds: each time


def pending(loss: float, *, copied: bool) -> PendingLoss:
    return PendingLoss(torch.tensor(loss), Event(copied), time.monotonic(), tokens=8)


def test_a_loss_that_is_not_there_yet_is_read_later(on_a_gpu):
    shown = []
    logger = MetricsLogger(0, 100, 0.0, log=None, show=shown.append)
    losses = [pending(float(number), copied=number < 3) for number in range(1, 5)]
    for loss in losses:
        logger.add(loss)
    assert shown[-1].done == 2
    assert shown[-1].loss == 2.0
    logger.flush()
    assert shown[-1].done == 4
    assert [loss.copied.waited for loss in losses] == [0, 0, 1, 1]


def test_a_loss_that_is_not_finite_is_found_without_waiting_for_the_latest(on_a_gpu):
    logger = MetricsLogger(0, 100, 0.0, log=None, show=None)
    losses = [pending(1.0, copied=False) for _ in range(CHECK_EVERY)]
    for loss in losses:
        logger.add(loss)
    waited = [loss.copied.waited for loss in losses]
    assert waited == [1] * (CHECK_EVERY - NOT_YET_CHECKED) + [0] * NOT_YET_CHECKED
    logger.add(pending(torch.nan, copied=True))
    for _ in range(CHECK_EVERY - 2):
        logger.add(pending(1.0, copied=True))
    with pytest.raises(NotFinite, match=f"the loss of update {CHECK_EVERY + 1} is nan"):
        logger.add(pending(1.0, copied=True))
    assert logger.updates == 2 * CHECK_EVERY
