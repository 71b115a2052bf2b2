"""Data parallelism gives the same answer as one process, for every spread of lengths and number of ranks."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from course_lib import launch, trace
from course_lib.core.adding import AddingProblem
from course_lib.core.model import cross_entropy, lstm_model, squared_error
from course_lib.core.proof import same_as_one_process
from course_lib.core.text import Corpus, Streams
from course_lib.data_parallel.ddp import DDP, TracedDDP
from course_lib.data_parallel.network import paced_network
from course_lib.messages.link import Link

adam = partial(torch.optim.Adam, lr=0.01)
CORPUS = Corpus.from_text("a b. c d e f g h i j k l m n. o p q. r s t u v w x y z. one two. three four five six.")
WINDOWS = list(Streams(Corpus.from_text("each rank keeps its own streams. " * 24).tokens, streams=4, window=6))[:4]
SENTENCES = [CORPUS.batch([0, 1, 2]), CORPUS.batch([3, 4, 5]), CORPUS.batch([1, 0, 5, 2])]


def numbers_model():
    return lstm_model(features=2, hidden=6, layers=2, outputs=1)


def adding_batches(sequences: int, lengths: tuple[int, int]) -> list:
    data = AddingProblem(3 * sequences, lengths, dtype=torch.float64)
    return [data.batch(range(start, start + sequences)) for start in range(0, 3 * sequences, sequences)]


numbers = {"model": numbers_model, "batches": adding_batches(8, (3, 12)), "loss": squared_error, "optimizer": adam}
text_model = partial(lstm_model, vocabulary=len(CORPUS.vocabulary), hidden=5, layers=1)
text = {"model": text_model, "batches": SENTENCES, "loss": cross_entropy, "optimizer": adam}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ddp_is_the_same_as_one_process(ranks):
    assert same_as_one_process(DDP, ranks=ranks, **numbers)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_ranks_that_count_different_numbers_of_tokens_still_agree(clip):
    counts = [[batch.shard(rank, 2).count for rank in range(2)] for batch in SENTENCES]
    assert all(one != other for one, other in counts)
    assert same_as_one_process(DDP, ranks=2, clip=clip, **text)


def test_a_rank_with_an_empty_share_takes_part():
    assert same_as_one_process(DDP, ranks=4, **{**numbers, "batches": adding_batches(3, (3, 9))})


def test_each_rank_carries_the_state_of_its_own_streams():
    assert same_as_one_process(DDP, ranks=2, carry_state=True, **{**text, "batches": WINDOWS})


def test_traced_buckets_say_which_blocks_they_hold_and_change_nothing():
    # Less than the smallest gradient: a bucket for each.
    assert same_as_one_process(TracedDDP, ranks=2, bucket_cap_mb=1e-6, **numbers)
    labels = launch(labels_of_buckets, numbers["batches"][0], ranks=2)[0]
    assert labels == {"3", "2", "1", "0"}


def labels_of_buckets(batch) -> set[str]:
    trained = TracedDDP(numbers_model().double(), adam, squared_error, bucket_cap_mb=1e-6)
    with paced_network(Link(latency=0, bandwidth=1e12)):
        for _ in range(2):  # DDP lays out its buckets after the first update
            trace.recorder.spans.clear()
            trained.step(trained.share(batch))
    return {span.label for span in trace.recorder.spans if span.name == "communication" and span.label}


def test_gradients_are_one_all_reduce_per_bucket_and_the_counts_one_more():
    def count_calls():
        from course_lib.launcher.hangs.call_log import CallLog

        strategy = DDP(numbers_model().double(), adam, squared_error)
        (batch, *_) = adding_batches(4, (3, 6))
        for _ in range(2):  # after the first backward pass the buckets are built again, in the order of arrival
            strategy.step(strategy.share(batch))
        before = len(CallLog().calls())
        strategy.step(strategy.share(batch))
        made = CallLog().calls()[before:]
        return [(call.op, call.shape) for call in made], sum(p.numel() for p in strategy.model.parameters())

    calls, parameters = launch(count_calls, ranks=2)[0]
    assert calls == [("all_reduce", (2,)), ("all_reduce", (parameters,))]
