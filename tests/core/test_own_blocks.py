"""A model of one's own is the same in pieces, or the proof says that it is not, and a run refuses it by name."""

from __future__ import annotations

import random
import re
from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib import RankFailed, launch
from course_lib.command import main
from course_lib.core.batch import Batch, pad
from course_lib.core.model import Embed, Project, Recurrent, SequenceModel, cross_entropy
from course_lib.core.proof import check_blocks, same_as_one_process
from course_lib.core.strategy import Single
from course_lib.data_parallel.ddp import DDP, Accumulation
from course_lib.model_parallel.model_parallel import ModelParallel
from course_lib.model_parallel.tensor_parallel import TensorParallel
from course_lib.pipeline.pipeline import Pipeline
from course_lib.sharding.fsdp import FSDP
from course_lib.sharding.hybrid import Hybrid
from tests.core.own_blocks import (
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


MIXES_STEPS = [Attention, Both, Normed, Forgetful]


def refused(strategy, model, **options) -> str:
    """What `check_blocks` says about this model on 2 ranks, with `options` for the strategy; empty if it is trained."""

    def check() -> None:
        torch.manual_seed(dist.get_rank())
        make = partial(strategy, **options)
        check_blocks(make, model(), cross_entropy, BATCHES[0])

    try:
        launch(check, ranks=2)
    except RankFailed as error:
        return str(error)
    return ""


@pytest.mark.parametrize("block", MIXES_STEPS)
def test_a_block_that_mixes_steps_is_refused_where_time_is_cut(block):
    says = refused(Pipeline, partial(model_with, block, Recurrent), micro_batches=1, chunks=2)
    expected = (
        rf"Pipeline does not train block 1 \({block.__name__}\) as one process does: .* is off by \S+ in the grad"
    )
    assert re.search(expected, says)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [(DDP, {}), (FSDP, {}), (Pipeline, {"micro_batches": 2}), (Hybrid, {"replicas": 1, "shards": 2})],
)
@pytest.mark.parametrize("block", [AmongSequences, Normed])
def test_a_block_that_mixes_sequences_is_refused_where_a_batch_is_cut(strategy, options, block):
    says = refused(strategy, partial(model_with, Recurrent, block), **options)
    assert f"does not train block 2 ({block.__name__}) as one process does" in says
    assert "change the block, cut the batch less, or train with single" in says


@pytest.mark.parametrize("strategy", [DDP, FSDP, ModelParallel, TensorParallel, Pipeline])
def test_a_block_that_mixes_nothing_is_trained(strategy):
    assert not refused(strategy, partial(model_with, Gated, partial(LayerNormed, drop=0.5), Recurrent))


def test_a_block_that_mixes_steps_is_trained_where_time_is_not_cut():
    assert not refused(Pipeline, partial(model_with, Attention, Both, Recurrent), micro_batches=1)


def test_a_trial_leaves_the_model_and_the_random_numbers_as_they_were():
    def work() -> bool:
        torch.manual_seed(3)
        model = model_with(LayerNormed, Normed)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state = torch.get_rng_state()
        check_blocks(partial(TensorParallel), model, cross_entropy, BATCHES[0])
        return torch.equal(torch.get_rng_state(), state) and all(
            torch.equal(before[name], tensor) for name, tensor in model.state_dict().items()
        )

    assert list(launch(work, ranks=2)) == [True, True]


class Particular(LayerNormed):
    def forward(self, inputs, state=None):
        assert len(inputs) == BATCHES[0].steps, "my length only"
        return super().forward(inputs)


def test_a_block_that_refuses_a_few_steps_is_said_to_be_unknown():
    model = partial(model_with, Particular)
    run = launch(lambda: check_blocks(DDP, model(), cross_entropy, BATCHES[0]), ranks=2)
    assert {rank for rank, _ in run.output} == {0}
    said = " ".join(line for _, line in run.output)
    assert "block 1 (Particular): one process cannot train 6 steps of 4 sequences in float64 (my length only)" in said


def test_a_run_refuses_a_model_that_its_strategy_would_train_differently(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from course_lib.core.model import Project\n"
        "class Mean(Project):\n"
        "    def forward(self, inputs, state=None):\n"
        "        outputs, _ = super().forward(inputs)\n"
        "        return outputs + outputs.mean(dim=0), None\n"
        "def blocks(features, outputs, hidden):\n"
        "    return [Mean(features, hidden), Project(hidden, outputs)]\n"
    )
    command = ["train", "pipeline", "--ranks", "2", "--updates", "2", "--batch", "8", "--model", "mine.py:blocks"]
    assert main([*command, "chunks=2"]) == 2
    assert "course: Pipeline does not train block 0 (Mean) as one process does" in capfd.readouterr().err
    assert main(command) == 0


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
NOT_IN_CHUNKS = {"Attention", "Both", "Normed", "Forgetful"}
NOT_IN_SHARES = {"AmongSequences", "Normed"}


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


def is_the_same(seed: int) -> bool:
    """Prove a random model, and check that if it is not the same as one process, one of its blocks explains it."""
    chance = random.Random(1000 + seed)
    ranks, strategy, options_of = chance.choice(WAYS)
    options = options_of(chance)
    names = {type(block).__name__ for block in random_model(seed).blocks.values()}
    case = f"seed {seed}: {strategy.__name__} on {ranks} ranks, {options}, {sorted(names)}"
    shares = strategy in (DDP, FSDP, Hybrid, Accumulation) or options.get("micro_batches", 1) > 1
    causes = (NOT_IN_SHARES & names if shares else set()) | (
        NOT_IN_CHUNKS & names if options.get("chunks", 1) > 1 else set()
    )
    try:
        proof = prove(strategy, ranks=ranks, model=partial(random_model, seed), **options)
    except (RankFailed, ValueError) as error:
        text = str(error).splitlines()[0]  # a weight that two stages share is refused by its own sentence
        assert re.search("share|tied", text) or causes, f"{case}: {text}"
        return False
    assert proof or causes, f"{case}: {proof}"
    return bool(proof)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 100), marks=pytest.mark.slow)], ids=["two", "rest"])
def test_a_random_model_is_the_same_as_one_process_or_a_block_explains_why_not(seeds):
    assert sum(map(is_the_same, seeds)) >= len(seeds) // 4
