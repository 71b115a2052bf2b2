"""A model of one's own is the same in pieces, or it is refused before the first update, with the block's name."""

from __future__ import annotations

import random
import re
import warnings
from functools import partial

import pytest
import torch

from course_lib import RankFailed, launch
from course_lib.data import Batch, pad
from course_lib.lstm.model import Embed, Project, Recurrent, SequenceModel, cross_entropy
from course_lib.strategies import DDP, FSDP, Accumulation, Hybrid, ModelParallel, Pipeline, Single, TensorParallel
from course_lib.strategies.probe import CannotBeCut
from course_lib.training import same_as_one_process
from tests.strategies.own_blocks import (
    AmongSequences,
    Attention,
    Both,
    Forgetful,
    Gated,
    LayerNormed,
    Noisy,
    Normed,
)

WIDTH, VOCABULARY = 4, 7
adam = partial(torch.optim.Adam, lr=0.01)


def text_batch(lengths: list[int], seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(0, VOCABULARY, (length + 1,), generator=generator) for length in lengths]
    return pad([text[:-1] for text in texts], [text[1:] for text in texts])


BATCHES = [text_batch([6, 9, 4, 7, 8, 5, 9, 3], 0), text_batch([5, 5, 5, 5, 5, 5, 5, 5], 1)]
prove = partial(same_as_one_process, batches=BATCHES, optimizer=adam, loss=cross_entropy)


def model_with(*blocks) -> SequenceModel:
    inner = [block(WIDTH) for block in blocks]
    return SequenceModel(dict(enumerate([Embed(VOCABULARY, WIDTH), *inner, Project(WIDTH, VOCABULARY)])))


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (Attention, "has different outputs in two chunks of time than as a whole"),
        (Both, "has different outputs in two chunks of time than as a whole"),
        (Normed, "has different outputs in two chunks of time than as a whole in training"),
        (Forgetful, "has different gradients in two chunks of time than as a whole"),
    ],
)
def test_a_block_that_mixes_steps_is_refused_where_time_is_cut(block, sentence):
    with pytest.raises(RankFailed, match=f"CannotBeCut: chunks=2: block 1 .{block.__name__}. {sentence}"):
        prove(Pipeline, ranks=2, model=partial(model_with, block, Recurrent), micro_batches=1, chunks=2)


@pytest.mark.parametrize(
    "block", [Attention, Both, *(pytest.param(block, marks=pytest.mark.slow) for block in (Normed, Forgetful))]
)
def test_where_time_is_not_cut_it_is_trained_as_by_one_process(block):
    assert prove(Pipeline, ranks=2, model=partial(model_with, block, Recurrent), micro_batches=1)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [(DDP, {}), (FSDP, {}), (Pipeline, {"micro_batches": 2}), (Hybrid, {"replicas": 1, "shards": 2})],
)
def test_a_block_that_mixes_sequences_is_refused_where_a_batch_is_cut(strategy, options):
    with pytest.raises(RankFailed, match=r"block 2 .AmongSequences. has different outputs in two parts of a batch"):
        prove(strategy, ranks=2, model=partial(model_with, Recurrent, AmongSequences), **options)


def test_statistics_of_a_part_of_a_batch_are_said_once():
    run = launch(_ddp_step, partial(model_with, Normed), ranks=2)
    assert [line for _, line in run.output if "block 1 (Normed) computes statistics" in line and "2 pieces" in line]
    assert {rank for rank, _ in run.output} == {0}


def _ddp_step(model) -> None:
    DDP(model(), adam, cross_entropy).step(BATCHES[0])


def test_a_trial_leaves_the_model_and_the_random_numbers_as_they_were():
    torch.manual_seed(3)
    model = model_with(LayerNormed, Normed)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    strategy = Single(model, adam, cross_entropy)
    strategy.micro_batches = 2  # as if it cut
    state = torch.get_rng_state()
    with pytest.warns(UserWarning, match="computes statistics"):
        strategy.check_cuts(BATCHES[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_first_block_is_tried_with_the_batchs_own_inputs():
    class Mixing(Embed):
        def forward(self, inputs, state=None):
            outputs, _ = super().forward(inputs)
            return outputs + outputs.mean(dim=0), None

    model = SequenceModel({0: Mixing(VOCABULARY, WIDTH), 1: Project(WIDTH, VOCABULARY)})
    strategy = Single(model, adam, cross_entropy)
    strategy.chunks = 2
    with pytest.raises(CannotBeCut, match=r"block 0 \(Mixing\)"):
        strategy.step(BATCHES[0])


def test_a_block_that_cannot_be_tried_is_said_to_be_unknown():
    class Particular(LayerNormed):
        def forward(self, inputs, state=None):
            assert len(inputs) == BATCHES[0].steps
            return super().forward(inputs)

    strategy = Single(model_with(Particular), adam, cross_entropy)
    strategy.micro_batches = 2
    with pytest.warns(UserWarning, match=r"block 1 \(Particular\) cannot be run on 6 steps of 4 sequences"):
        strategy.check_cuts(BATCHES[0])


def test_dropout_is_the_same_in_the_twin():
    model = partial(model_with, partial(LayerNormed, drop=0.5), Recurrent)
    assert prove(DDP, ranks=2, model=model)
    assert prove(Pipeline, ranks=2, model=model, micro_batches=2, chunks=2, recompute=True)


def test_what_draws_other_random_numbers_cannot_be_compared():
    with pytest.raises(ValueError, match="this model draws random numbers in its forward pass"):
        prove(DDP, ranks=2, model=partial(model_with, Noisy))


def test_the_comparison_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    assert prove(DDP, ranks=1, model=partial(model_with, Recurrent))
    assert torch.equal(torch.rand(3), expected)


def test_what_is_recomputed_counts_its_calls_once():
    def calls(recompute: bool) -> float:
        torch.manual_seed(0)
        model = model_with(LayerNormed)
        strategy = Pipeline(model, adam, cross_entropy, micro_batches=2, chunks=2, recompute=recompute)
        strategy.step(BATCHES[0])
        return float(model.blocks["1"].calls)

    assert [list(launch(calls, recompute, ranks=1)) for recompute in (False, True)] == [[4.0], [4.0]]


# A hundred models, each with a strategy and a layout of its own.

BLOCKS = [Recurrent, Gated, Both, Attention, AmongSequences, Normed, Forgetful, LayerNormed]
BLOCKS += [partial(LayerNormed, drop=0.3), Recurrent, Gated, LayerNormed]
WAYS = [
    (1, Single, lambda _: {}),
    (2, DDP, lambda _: {}),
    (2, Accumulation, lambda chance: {"micro_batches": chance.choice([1, 2, 3])}),
    (2, FSDP, lambda chance: {"micro_batches": chance.choice([1, 2])}),
    (2, ModelParallel, lambda _: {}),
    (2, TensorParallel, lambda _: {}),
    (2, Pipeline, lambda chance: _pieces(chance)),
    (3, Pipeline, lambda chance: _pieces(chance)),
    (4, Hybrid, lambda chance: {"replicas": 2, **_pieces(chance)}),
    (4, Hybrid, lambda chance: {"replicas": 1, "shards": 2, **_pieces(chance)}),
]
TRUE_REFUSALS = {
    "Attention": ("chunks of time",),
    "Both": ("chunks of time",),
    "Normed": ("chunks of time",),
    "Forgetful": ("chunks of time",),
    "AmongSequences": ("parts of a batch", "two parts"),
}


def _pieces(chance: random.Random) -> dict:
    schedule = chance.choice(["gpipe", "1f1b", "wavefront", "zb-h1"])
    pieces = {"micro_batches": chance.choice([1, 2, 4]), "chunks": chance.choice([1, 1, 2]), "schedule": schedule}
    return pieces | {"recompute": chance.random() < 0.3}


def random_model(seed: int) -> SequenceModel:
    """Three to five blocks between the way in and the way out; some are frozen, and some share their weights."""
    chance = random.Random(seed)
    kinds = [chance.choice(BLOCKS) for _ in range(chance.randint(3, 5))]
    blocks = [kind(WIDTH) for kind in kinds]
    if chance.random() < 0.2:
        for parameter in blocks[chance.randrange(len(blocks))].parameters():
            parameter.requires_grad_(False)
    model = SequenceModel(dict(enumerate([Embed(VOCABULARY, WIDTH), *blocks, Project(WIDTH, VOCABULARY)])))
    if chance.random() < 0.15:
        model.blocks[str(len(blocks) + 1)].linear.weight = model.blocks["0"].table.weight
    return model


def what_became_of(seed: int) -> str:
    """`the same`, `refused` with a true sentence, or `statistics` that were said to differ; or else it fails."""
    chance = random.Random(1000 + seed)
    ranks, strategy, options_of = chance.choice(WAYS)
    options = options_of(chance)
    names = {type(block).__name__ for block in random_model(seed).blocks.values()}
    told = f"seed {seed}: {strategy.__name__} on {ranks} ranks, {options}, {sorted(names)}"
    try:
        with warnings.catch_warnings(record=True):
            proof = prove(strategy, ranks=ranks, model=partial(random_model, seed), **options)
    except (RankFailed, ValueError) as error:
        text = str(error).splitlines()[0]
        if re.search("share|tied", text):  # a weight that two stages share is refused by its own sentence
            assert strategy in (Pipeline, Hybrid, ModelParallel, TensorParallel), f"{told}: {text}"
            return "refused"
        found = re.search(r"block \d+ \((\w+)\)", text)
        assert found, f"{told}: {text}"
        assert found[1] in names, f"{told}: {text}"
        assert any(part in text for part in TRUE_REFUSALS.get(found[1], ())), f"{told}: {text}"
        return "refused"
    if proof:
        return "the same"
    cut = strategy in (DDP, FSDP, Hybrid) or options.get("micro_batches", 1) > 1 or strategy is Accumulation
    assert "Normed" in names, f"{told}: {proof}"
    assert cut, f"{told}: {proof}"
    return "statistics"


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 100), marks=pytest.mark.slow)], ids=["two", "rest"])
def test_a_random_model_is_the_same_as_one_process_or_refused_for_its_cause(seeds):
    became = [what_became_of(seed) for seed in seeds]
    assert became.count("the same") >= len(became) // 4
