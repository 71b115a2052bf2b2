"""What a sharded model gathers and drops is seen as it happens, and counted to the byte."""

from __future__ import annotations

from functools import partial

import pytest
import torch.distributed as dist

from course_lib import RankFailed, launch
from course_lib.core.model import cross_entropy, lstm_model
from course_lib.core.proof import prove_all
from course_lib.model_parallel.sharded_memory import block_bytes, predict_sharding
from course_lib.sharding.fsdp import FSDP, GatherPace, GatherWatch
from course_lib.sharding.gather_picture import draw_gather_and_drop
from course_lib.sharding.measurement import make_sharded, measure_sharding
from tests.data_parallel.test_accumulation import UNEVEN, VOCABULARY, adam, plain, tied
from tests.data_parallel.test_accumulation import text_batches as batches

pytestmark = pytest.mark.slow

small = partial(lstm_model, vocabulary=VOCABULARY, hidden=6, layers=2)  # 4 blocks: in, 1, 2, out
IN, LAYER, OUT = 4 * 11 * 6, 4 * (2 * 24 * 6 + 2 * 24), 4 * (11 * 6 + 11)  # bytes in float32


def watched(**options):
    pace = options.pop("pace", None)
    strategy = FSDP(small(), adam, cross_entropy, **options)
    share = strategy.share(batches(UNEVEN)[0])
    strategy.step(share)
    watch = GatherWatch(strategy, pace)
    dist.barrier()
    strategy.step(share)
    return watch.gathered, watch.gradients, watch.passing


def story(run, rank=0):
    return [
        f"{span.name} {span.label}"
        for span in sorted(run.spans, key=lambda span: span.start)
        if span.rank == rank and span.label
    ]


def test_a_block_is_gathered_works_and_is_dropped_and_again_on_the_way_back():
    run = launch(watched, ranks=2)
    forward = [f"{what} {block}" for block in "012" for what in ("all-gather", "forward", "drop")]
    last = ["all-gather 3", "forward 3"]  # not dropped: the backward pass begins with it
    back = [
        *("all-gather 2", "backward 3", "drop 3", "reduce-scatter 3"),  # what comes next is gathered beforehand
        *("all-gather 1", "backward 2", "drop 2", "reduce-scatter 2"),
        *("all-gather 0", "backward 1", "drop 1", "reduce-scatter 1"),
        *("backward 0", "drop 0", "reduce-scatter 0"),
    ]
    assert story(run) == story(run, rank=1) == forward + last + back


def test_a_model_that_stays_whole_is_gathered_once():
    run = launch(watched, reshard_after_forward=False, ranks=2)
    told = story(run)
    assert told[:8] == [f"{what} {block}" for block in "0123" for what in ("all-gather", "forward")]
    assert told[8:] == [f"{what} {block}" for block in "3210" for what in ("backward", "drop", "reduce-scatter")]


def test_bytes_that_come_and_go_are_counted():
    padded = 4 * 12 * 6, LAYER, 4 * (12 * 6 + 12)  # 11 rows on two ranks are 12
    gathered, gradients, passing = launch(watched, ranks=2)[0]
    assert (gathered.now, gradients.now) == (0, 0)
    assert (gathered.peak, gradients.peak) == (2 * LAYER, LAYER)
    assert passing.now == (padded[0] + 2 * padded[1] + padded[2]) / 2  # the shards of the gradients
    assert passing.peak == 3 * LAYER + padded[2] / 2  # in the second layer's backward pass
    gathered, _, passing = launch(watched, reshard_after_forward=False, ranks=2)[0]
    assert gathered.peak == padded[0] + 2 * padded[1] + padded[2]
    assert passing.peak == padded[0] + 3 * LAYER + padded[2] / 2


def test_watching_changes_no_result():
    class Watched(FSDP):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            GatherWatch(self)

    ways = [{}, {"reshard_after_forward": False, "clip": 0.05}]
    common = {"model": plain, "batches": batches(UNEVEN)[:2], "optimizer": adam, "loss": cross_entropy}
    for proof in prove_all(ways, Watched, ranks=2, **common):
        assert proof, proof


WAYS = [("ddp", 1), ("zero-1", 1), ("zero-2", 1), ("zero-3", 1), ("zero-2", 2), ("zero-3", 2), ("zero-3", 4)]


@pytest.mark.parametrize(("way", "replicas"), WAYS)
def test_the_formula_says_to_the_byte_what_is_measured(way, replicas):
    def measured():
        strategy = make_sharded(small(), cross_entropy, way, replicas=replicas)
        return measure_sharding(strategy, strategy.share(batches(UNEVEN)[0]))

    found, predicted = launch(measured, ranks=4), predict_sharding(small(), way, 4, replicas=replicas)
    assert max(found, key=lambda memory: memory.at_rest) == predicted
    assert not found.output


def test_a_sharded_optimizer_is_the_same_as_one_process():
    def zero_1(model, optimizer, loss, **options):
        return make_sharded(model, loss, "zero-1")

    common = {"model": plain, "batches": batches(UNEVEN)[:3], "optimizer": adam, "loss": cross_entropy}
    (proof,) = prove_all([{}], zero_1, ranks=3, **common)
    assert proof, proof


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda: GatherWatch(FSDP(small(), adam, cross_entropy, replicas=2)), "give more ranks than replicas"),
        (lambda: GatherWatch(FSDP(tied(), adam, cross_entropy)), "block 0 shares a weight"),
        (lambda: make_sharded(small(), cross_entropy, "zero-4"), "choose ddp, zero-1, zero-2, zero-3"),
    ],
)
def test_what_cannot_be_watched_is_refused_with_a_sentence(act, sentence):
    with pytest.raises(RankFailed, match=sentence):
        launch(act, ranks=2)


def test_the_picture_shows_every_block_and_the_most_that_is_held():
    run = launch(watched, pace=GatherPace(0.01, 0.01, 0.02, 0.01), ranks=2)
    whole = IN + 2 * LAYER + OUT
    picture = draw_gather_and_drop(run, block_bytes(small()), shards=2, optimizer_bytes=whole)
    bars = sum(len(bar.get_paths()) for bar in picture.figure.axes[0].collections if bar.get_facecolor().size)
    assert bars == 7 + 4 + 4 + 4  # gathered, forward, backward, scattered; the drops are strokes
    in_layer_2 = 2 * LAYER + LAYER + OUT / 2  # layers 1 and 2 whole, layer 2's gradient, and rows of the last one's
    a_block_later = LAYER + IN + LAYER + (OUT + LAYER) / 2
    most = whole / 2 + max(in_layer_2, a_block_later) + whole
    assert f"at most {most / 1024:.3g} KiB of parameters, gradients and optimizer" in picture.alt
    assert f"holds {whole / 2 / 1024:.3g} KiB of parameters" in picture.alt
    assert picture.alt.startswith("Paced gather-and-drop timeline of rank 0: 4 blocks over 2 shards")


def test_a_picture_of_nothing_says_how_to_watch():
    with pytest.raises(ValueError, match="GatherWatch"):
        draw_gather_and_drop(launch(lambda: None, ranks=1), block_bytes(small()), shards=2)
