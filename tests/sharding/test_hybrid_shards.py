"""Pipelines that divide the optimizer among them, by rows, give the same answer as one process."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from course_lib import launch
from course_lib.core.metering import meter
from course_lib.core.model import cross_entropy, lstm_model
from course_lib.core.text import Corpus, Streams
from course_lib.model_parallel.placement import Placement
from course_lib.one_device.loop import evaluate
from course_lib.one_device.measurement import measure_memory
from course_lib.pipeline.named_schedules import SCHEDULES
from course_lib.sharding import hybrid
from course_lib.sharding.hybrid import Hybrid
from tests.pipeline.test_pipeline import BATCHES, adam, deep, frozen_first_stage, model, prove, prove_all

EMPTY = [*BATCHES, BATCHES[0].rows([0, 5]), BATCHES[1].rows([])]  # some ranks, then all, have nothing to do


def assert_same(variations, *, ranks, **given):
    for variation, proof in zip(variations, prove_all(variations, Hybrid, ranks=ranks, **given), strict=True):
        assert proof, f"{variation}: {proof}"
        assert {step.rank for step in proof.steps} == set(range(ranks))


def test_two_stages_with_two_shards_are_the_same_as_one_process():
    cuts = (("1f1b", 3, 1, {"clip": 0.05}), ("zb-h1", 2, 2, {"inside": "replicas"}))
    variations = [
        {"replicas": 1, "shards": 2, "schedule": name, "micro_batches": m, "chunks": c, **more}
        for name, m, c, more in cuts
    ]
    assert_same(variations, ranks=4, batches=EMPTY[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "shards", "stages"), [(1, 2, 2), (2, 2, 1), (1, 4, 1), (2, 2, 2), (1, 4, 2), (1, 2, 4), (1, 3, 2)]
)
def test_every_schedule_on_every_mesh_is_the_same_as_one_process(replicas, shards, stages):
    mesh = {"replicas": replicas, "shards": shards}
    variations = [
        {**mesh, "schedule": name, "micro_batches": m, "chunks": c} for name in SCHEDULES for m, c in ((2, 3),)
    ]
    variations += [{**mesh, "schedule": name, "micro_batches": 5, "recompute": True} for name in ("1f1b", "zb-v")]
    variations += [{**mesh, "clip": 0.05}, {**mesh, "inside": "replicas", "clip": 0.05, "micro_batches": 1}]
    assert_same(variations, ranks=replicas * shards * stages, model=deep, batches=EMPTY)


CORPUS = Corpus.from_text("every replica has its own streams, every stage its own layers. " * 12)
WINDOWS = list(Streams(CORPUS.tokens, streams=7, window=6))[:4]
carrying = {"model": partial(lstm_model, vocabulary=len(CORPUS.vocabulary), hidden=5, layers=2), "batches": WINDOWS}
UNUSUAL = {
    "the state is carried": (4, {"micro_batches": 2, "chunks": 3, "carry_state": True, "clip": 0.05}, carrying),
    "frozen blocks": (4, {"placement": Placement((0, 1, 1, 1)), "clip": 0.05}, {"model": frozen_first_stage}),
    "ranks without rows": (6, {"shards": 6}, {"model": partial(lstm_model, vocabulary=9, hidden=1, layers=1)}),
    "state that is made at once, of the rows": (4, {}, {"optimizer": partial(torch.optim.Adagrad, lr=0.1)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UNUSUAL)
def test_the_same_as_one_process_with(case):
    ranks, options, training = UNUSUAL[case]
    assert_same([{"replicas": 1, "shards": 2, **options}], ranks=ranks, **training)


def sizes(shards: int) -> tuple[int, int, int, int]:
    """The numbers of this rank's rows, of their gradients and Adam's first moments; and the measured memory of both."""
    strategy = Hybrid(model(), adam, cross_entropy, replicas=1, shards=shards)
    share = strategy.share(BATCHES[0])
    strategy.step(share)
    weights = [shard.tensor for shard in strategy.shards().values()]
    moments = [strategy.optimizer.state[weight]["exp_avg"] for weight in weights]
    held = [sum(each.numel() for each in of) for of in (weights, [weight.grad for weight in weights], moments)]
    return *held, measure_memory(strategy, share)


def test_ranks_divide_the_optimizer_state_and_keep_whole_weights():
    whole = sum(weight.numel() for weight in model().parameters())
    found = list(launch(sizes, 2, ranks=2))
    assert [sum(part) for part in list(zip(*found, strict=True))[:3]] == [whole] * 3
    assert max(found[0][:3]) < 0.6 * whole
    alone, first = launch(sizes, 1, ranks=1)[0][3], found[0][3]
    assert first.optimizer < 0.6 * alone.optimizer
    assert alone.parameters <= first.parameters < 1.1 * alone.parameters  # padded to equally many rows
    assert alone.gradients <= first.gradients < 1.1 * alone.gradients


def two_steps_with_pieces_in_hand() -> float:
    strategy = Hybrid(model(), adam, cross_entropy, replicas=1, shards=2)
    share = strategy.share(BATCHES[0])
    strategy.step(share)
    kept = [shard.pieces() for shard in strategy.shards().values()]  # as a checkpoint does that is still being written
    loss, _ = strategy.step(share)
    assert len(kept) == len(list(strategy.model.parameters()))
    return loss.item()


def test_pieces_of_a_weight_that_are_kept_leave_the_next_step_alone():
    assert len(set(launch(two_steps_with_pieces_in_hand, ranks=2))) == 1


def test_weights_are_gathered_and_gradients_reduced_once_however_many_micro_batches_there_are():
    def calls(micro_batches):
        strategy = Hybrid(model(), adam, cross_entropy, replicas=1, shards=2, micro_batches=micro_batches)
        share, weights = strategy.share(BATCHES[0]), len(list(strategy.model.parameters()))
        strategy.step(share)
        with meter() as spent:
            strategy.step(share)
        return {name: count for name, count in spent.calls.items() if "all_reduce" not in name}, weights

    for micro_batches in (1, 4):
        for made, weights in launch(calls, micro_batches, ranks=4):
            assert set(made.values()) == {weights}
            assert any("gather" in name for name in made)


class LateGather:
    """An all-gather that happens only when somebody waits for it, as late as it can."""

    def __init__(self, *given, async_op):
        self.given = given

    def wait(self):
        in_time_gather(*self.given)


in_time_gather = hybrid.all_gather


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_block_waits_for_its_weights(schedule):
    class Late(Hybrid):
        def __init__(self, *given, **options):
            hybrid.all_gather = LateGather
            super().__init__(*given, **options)

    proof = prove(Late, ranks=2, replicas=1, shards=2, schedule=schedule)
    assert proof, proof


def test_a_forward_pass_alone_leaves_the_rows_as_they_were():
    def evaluated():
        strategy = Hybrid(model(), adam, cross_entropy, replicas=1, shards=2)
        before = [shard.tensor.shape for shard in strategy.shards().values()]
        loss = evaluate(strategy, [BATCHES[0]])
        return loss > 0, before == [shard.tensor.shape for shard in strategy.checked_shards().values()]

    assert set(launch(evaluated, ranks=2)) == {(True, True)}
