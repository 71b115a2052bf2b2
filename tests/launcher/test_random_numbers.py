"""Ranks are forks of one process, and behave like processes of their own: in what they draw, and in how they end."""

from __future__ import annotations

import atexit
import logging
import logging.handlers
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch
import torch.distributed as dist

from course_lib import launch


def draw() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(numpy.random.rand()), random.random()


def test_every_rank_of_every_launch_draws_numbers_of_its_own():
    drawn = [*launch(draw, ranks=3), *launch(draw, ranks=3)]
    for kind in zip(*drawn, strict=True):
        assert len(set(kind)) == 6


def test_with_a_seed_a_launch_repeats_itself_and_its_ranks_still_differ():
    first, again = launch(draw, ranks=3, seed=7), launch(draw, ranks=3, seed=7)
    assert list(first) == list(again)
    for kind in zip(*first, strict=True):
        assert len(set(kind)) == 3


def test_a_rank_with_a_seed_draws_what_torch_draws_after_seed_plus_rank():
    drawn = [value[0] for value in launch(draw, ranks=2, seed=7)]
    assert drawn == [torch.rand((), generator=torch.Generator().manual_seed(7 + rank)).item() for rank in range(2)]


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (2**63, ValueError), ("7", TypeError), (True, TypeError)]
)
def test_a_seed_that_is_none_gets_a_sentence(seed, error):
    with pytest.raises(error, match=f"seed={seed!r}: "):
        launch(draw, ranks=1, seed=seed)


def test_a_child_that_a_rank_forks_is_not_the_rank():
    def work():
        child = os.fork()
        if child == 0:
            return "the child"
        os.waitpid(child, 0)
        return "the rank"

    assert list(launch(work, ranks=2)) == ["the rank"] * 2


def test_a_child_that_raises_is_not_the_rank_and_is_heard():
    def work():
        child = os.fork()
        if child == 0:
            raise ValueError("in the child")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    run = launch(work, ranks=1)
    assert list(run) == [1]
    assert "ValueError: in the child" in [line for _, line in run.output]


def test_what_a_rank_says_after_its_function_has_returned_is_heard():
    def work():
        def later():
            time.sleep(0.3)
            print("a thread")

        threading.Thread(target=later).start()
        atexit.register(print, "at exit")
        logger = logging.getLogger("held back")
        logger.addHandler(logging.handlers.MemoryHandler(1000, target=logging.StreamHandler()))
        logger.warning("a logger")
        return dist.get_rank()

    run = launch(work, ranks=2)
    assert list(run) == [0, 1]
    for rank in range(2):
        assert {line for its_rank, line in run.output if its_rank == rank} == {"a thread", "at exit", "a logger"}


def test_an_executor_that_nobody_shut_down_keeps_no_rank():
    def work():
        return ThreadPoolExecutor(2).submit(lambda: 5).result()

    assert list(launch(work, ranks=2)) == [5, 5]


def test_what_the_server_registered_for_its_exit_is_not_called_by_ranks():
    def work():
        return atexit._ncallbacks()

    assert launch(work, ranks=1)[0] <= 1  # what a rank's own imports have registered
