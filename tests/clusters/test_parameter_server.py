"""A parameter server: synchronous it is one process, asynchronous it is something else, and says by how much."""

from __future__ import annotations

import itertools
import statistics
from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib import LaunchError, launch
from course_lib.clusters.parameter_server import ParameterServer
from course_lib.core.adding import AddingProblem
from course_lib.core.model import cross_entropy, lstm_model, squared_error
from course_lib.core.proof import same_as_one_process
from course_lib.core.text import Corpus

small = partial(lstm_model, features=2, hidden=6, layers=2, outputs=1)
adam = partial(torch.optim.Adam, lr=0.01)
DATA = AddingProblem(33, lengths=(3, 12), dtype=torch.float64)
BATCHES = [DATA.batch(range(start, start + 11)) for start in (0, 11, 22)]
prove = partial(same_as_one_process, ParameterServer, model=small, batches=BATCHES, optimizer=adam, loss=squared_error)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_synchronous_it_is_the_same_as_one_process(workers):
    assert prove(ranks=workers + 1, synchronous=True)


def test_asynchronous_with_one_worker_it_is_the_same_as_one_process():
    assert prove(ranks=2)


def test_workers_that_count_different_numbers_of_tokens_are_weighed_by_them():
    corpus = Corpus.from_text("a b. c d e f g h i j k l m n. o p q. r s t u v w x y z. one two. three four five six.")
    batches = [corpus.batch([0, 1, 2]), corpus.batch([3, 4]), corpus.batch([5])]  # of the last, a worker has nothing
    model = partial(lstm_model, vocabulary=len(corpus.vocabulary), hidden=5, layers=1)
    assert prove(ranks=3, model=model, batches=batches, loss=cross_entropy, synchronous=True)


def trained(synchronous: bool, pace: dict[int, float], updates: int) -> tuple[list, int]:
    """On every rank: the server's updates, and the version of the weights this rank ended with."""
    seconds = pace.get(dist.get_rank(), 0.0)
    server = ParameterServer(small().double(), adam, squared_error, synchronous=synchronous, pace=seconds / 11)
    return server.train(itertools.cycle(BATCHES), updates), server.updates


def test_as_many_updates_are_made_as_were_asked_for_and_all_stop():
    for synchronous in (False, True):
        run = launch(trained, synchronous, {}, updates=10, ranks=4)
        assert len(run[0][0]) == 10
        assert all(updates == [] for updates, _ in run[1:])
        assert {version for _, version in run} == {10}


def test_an_update_of_all_workers_is_never_stale():
    updates, _ = launch(trained, True, {1: 0.02}, updates=6, ranks=4)[0]
    assert {(update.workers, update.staleness) for update in updates} == {((1, 2, 3), 0)}


@pytest.mark.slow
def test_a_slow_worker_is_rarely_heard_and_very_stale():
    updates, _ = launch(trained, False, {1: 0.05, 2: 0.5}, updates=30, ranks=3)[0]
    fast, slow = ([update.staleness for update in updates if update.workers == (worker,)] for worker in (1, 2))
    assert 1 <= len(slow) < len(fast) / 2
    assert statistics.median(slow) > 2 * statistics.median(fast)


def test_a_server_without_workers_is_refused():
    with pytest.raises(LaunchError, match="has no workers: give at least 2 ranks"):
        launch(trained, False, {}, updates=1, ranks=1)
