"""A model cut between its blocks gives the same answer as one process, wherever it is cut."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from course_lib import RankFailed, launch
from course_lib.core.model import SequenceModel, cross_entropy, lstm_model
from course_lib.core.text import Corpus, Streams
from course_lib.model_parallel.model_parallel import ModelParallel
from course_lib.model_parallel.placement import BlockCost, Placement, balanced, equal_count, round_robin
from tests.data_parallel.test_accumulation import UNEVEN, UNIFORM, VOCABULARY, adam, prove, text_batches, tied

UPDATES, BLOCKS = 3, 5


def model() -> SequenceModel:
    return lstm_model(vocabulary=VOCABULARY, hidden=5, layers=BLOCKS - 2)


def first_blocks_frozen() -> SequenceModel:
    frozen = model()
    frozen.part(0, 2).requires_grad_(False)  # a stage of its own, on four ranks: no gradient at all
    frozen.blocks["3"].requires_grad_(False)
    return frozen


def batches(lengths=UNEVEN):
    return text_batches(lengths)[:UPDATES]


def balanced_by_cost(blocks: int, stages: int) -> Placement:
    return balanced([BlockCost(seconds, 1) for seconds in (0.0, 2.0, 2.0, 2.0, 1.0)], stages)


def backwards(blocks: int, stages: int) -> Placement:
    """The last stage first: ranks need not follow the order of the blocks."""
    return Placement(tuple(stages - 1 - stage for stage in equal_count(blocks, stages).stage_of))


QUICK = [(equal_count, 2)]
EVERY = [
    pytest.param(place, ranks, marks=() if (place, ranks) in QUICK else pytest.mark.slow)
    for place in (equal_count, balanced_by_cost, round_robin)
    for ranks in (2, 3, 4)
]


@pytest.mark.parametrize(("place", "ranks"), [(equal_count, 1), *EVERY, (backwards, 3)])
def test_every_placement_is_the_same_as_one_process(place, ranks):
    uniform, (uneven, *_) = batches(UNIFORM), batches(UNEVEN)
    changing = [uniform[0], uneven, uniform[2]]  # shapes change from one update to the next
    proof = prove(ModelParallel, ranks=ranks, model=model, batches=changing, placement=place(BLOCKS, ranks))
    assert proof, proof
    assert len(proof.steps) == ranks * UPDATES


@pytest.mark.slow
def test_frozen_blocks_stay_and_the_others_learn():
    placement = Placement((0, 0, 1, 2, 3))
    proof = prove(ModelParallel, ranks=4, model=first_blocks_frozen, batches=batches(), placement=placement, clip=0.05)
    assert proof, proof


def test_the_gradient_is_clipped_by_the_norm_of_the_whole():
    proof = prove(ModelParallel, ranks=3, model=model, batches=batches(), clip=0.05)
    assert proof, proof


def test_every_stage_carries_its_own_layers_states():
    corpus = Corpus.from_text("a state stays on the rank whose layer it belongs to. " * 12)
    make = partial(lstm_model, vocabulary=len(corpus.vocabulary), hidden=5, layers=3)
    windows = list(Streams(corpus.tokens, streams=4, window=6))[:4]
    options = {"placement": round_robin(BLOCKS, 2), "carry_state": True}
    proof = prove(ModelParallel, ranks=2, model=make, batches=windows, **options)
    assert proof, proof


@pytest.mark.slow
def test_an_empty_batch_moves_nothing_and_nothing_hangs():
    first, second, third = batches()
    proof = prove(ModelParallel, ranks=3, model=model, batches=[first, second.rows([]), third])
    assert proof, proof


def test_weights_may_be_shared_on_one_stage_but_not_between_two():
    together = Placement((0, 1, 1, 0))
    proof = prove(ModelParallel, ranks=2, model=tied, batches=batches(), placement=together)
    assert proof, proof
    with pytest.raises(RankFailed, match="blocks 0 and 3 share a weight, but live on stages 0 and 1"):
        prove(ModelParallel, ranks=2, model=tied, batches=batches())


def test_one_rank_computes_at_a_time():
    def update():
        ModelParallel(model(), adam, cross_entropy).step(batches()[0])

    work = [span for span in launch(update, ranks=3).spans if span.name in ("forward", "backward")]
    work.sort(key=lambda span: span.start)
    assert [span.rank for span in work] == [0, 1, 2, 2, 1, 0]
    assert all(one.end <= other.start for one, other in pairwise(work))


def test_a_rank_keeps_only_its_own_blocks():
    def names():
        strategy = ModelParallel(model(), adam, cross_entropy, placement=Placement((0, 1, 0, 1, 1)))
        return list(strategy.model.blocks), len(strategy.full_state())

    run = launch(names, ranks=2)
    whole = len(list(model().parameters()))
    assert list(run) == [(["0", "2"], whole), (["1", "3", "4"], whole)]


@pytest.mark.slow
def test_a_placement_that_does_not_fit_gets_a_sentence():
    for placement, sentence in (
        (Placement((0, 0, 1, 2, 2)), "a placement on 3 stages for 2 ranks: there is one rank per stage"),
        (Placement((0, 1)), "a placement of 2 blocks for a model of 5: place them all"),
    ):
        with pytest.raises(RankFailed, match=sentence):
            prove(ModelParallel, ranks=2, model=model, batches=batches(), placement=placement)
