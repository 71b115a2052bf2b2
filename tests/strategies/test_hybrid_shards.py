"""Pipelines that divide the optimizer among them, by rows, give the same answer as one process."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib import RankFailed, launch
from course_lib.data import Corpus, Streams
from course_lib.lstm.model import cross_entropy, lstm_model
from course_lib.meter import meter
from course_lib.planning.placement import Placement
from course_lib.planning.schedules import SCHEDULES
from course_lib.strategies import Hybrid, zero
from course_lib.strategies.mesh import mesh_of
from course_lib.strategies.zero import RowShards
from course_lib.training import evaluate, measure_memory
from tests.strategies.test_pipeline import BATCHES, adam, deep, frozen_first_stage, model, prove, prove_all

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


@pytest.mark.slow
def test_each_pipeline_carries_the_state_of_its_own_streams():
    corpus = Corpus.from_text("every replica has its own streams, every stage its own layers. " * 12)
    windows = list(Streams(corpus.tokens, streams=7, window=6))[:4]
    whole = partial(lstm_model, vocabulary=len(corpus.vocabulary), hidden=5, layers=2)
    options = {"replicas": 1, "shards": 2, "micro_batches": 2, "chunks": 3, "carry_state": True, "clip": 0.05}
    assert_same([options], ranks=4, model=whole, batches=windows)


@pytest.mark.slow
def test_frozen_blocks_stay_whole():
    options = {"replicas": 1, "shards": 2, "placement": Placement((0, 1, 1, 1)), "clip": 0.05}
    assert_same([options], ranks=4, model=frozen_first_stage)


@pytest.mark.slow
def test_a_rank_may_have_no_rows():
    tiny = partial(lstm_model, vocabulary=9, hidden=1, layers=1)
    assert_same([{"replicas": 1, "shards": 6}], ranks=6, model=tiny)


@pytest.mark.slow
def test_an_optimizer_that_makes_its_state_at_once_makes_it_of_its_rows():
    assert_same([{"replicas": 1, "shards": 2}], ranks=4, optimizer=partial(torch.optim.Adagrad, lr=0.1))


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
        zero_gather(*self.given)


zero_gather = zero.all_gather


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_block_waits_for_its_weights(schedule):
    class Late(Hybrid):
        def __init__(self, *given, **options):
            zero.all_gather = LateGather
            super().__init__(*given, **options)

    proof = prove(Late, ranks=2, replicas=1, shards=2, schedule=schedule)
    assert proof, proof


@pytest.mark.parametrize("broken", ["wait", "reduce"])
def test_weights_that_are_not_gathered_and_gradients_that_are_not_reduced_are_found_out(broken):
    class Broken(Hybrid):
        def __init__(self, *given, **options):
            zero.all_gather = LateGather
            super().__init__(*given, **options)
            if broken == "wait":
                for rows in self.row_shards.rows.values():
                    rows.padded[: rows.local.start] += 0.1  # nobody overwrites it
                RowShards.wait = lambda rows, block: None
            else:
                self.sum_over_replicas.start_sum = self.keep

        def keep(self, weight):
            rows = self.row_shards.rows[weight]
            rows.reduced = weight.grad[rows.local.start : rows.local.stop].clone()
            return dist.barrier(self.row_shards.group, async_op=True)

    even = partial(lstm_model, vocabulary=10, hidden=4, layers=1)  # a multiple of the ranks: no padding
    assert not prove(Broken, ranks=2, replicas=1, shards=2, model=even)


def test_a_forward_pass_alone_leaves_the_rows_as_they_were():
    def evaluated():
        strategy = Hybrid(model(), adam, cross_entropy, replicas=1, shards=2)
        before = [shard.tensor.shape for shard in strategy.shards().values()]
        loss = evaluate(strategy, [BATCHES[0]])
        return loss > 0, before == [shard.tensor.shape for shard in strategy.checked_shards().values()]

    assert set(launch(evaluated, ranks=2)) == {(True, True)}


def groups_of(inside: str) -> list[list[int]]:
    mesh = mesh_of(2, inside=inside, shards=2)
    return [dist.get_process_group_ranks(mesh.get_group(name)) for name in ("replica", "shard", "stage")]


@pytest.mark.slow
def test_shards_are_closer_than_replicas_and_either_or_the_stages_are_neighbors():
    assert launch(groups_of, "stages", ranks=8)[0] == [[0, 4], [0, 2], [0, 1]]
    assert launch(groups_of, "replicas", ranks=8)[0] == [[0, 2], [0, 1], [0, 4]]


def test_a_mesh_with_shards_that_does_not_fill_the_ranks_gets_a_sentence():
    sentence = r"replicas=2 shards=3 on 4 ranks: replicas x shards x stages = ranks, so choose a product of \[1, 2, 4\]"
    with pytest.raises(RankFailed, match=sentence):
        launch(lambda: mesh_of(2, shards=3), ranks=4)
