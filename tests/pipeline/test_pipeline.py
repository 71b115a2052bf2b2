"""A pipeline gives the same answer as one process, whatever the schedule, the cut and the lengths."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from course_lib import launch
from course_lib.core.batch import Batch, pad
from course_lib.core.model import SequenceModel, cross_entropy, lstm_model
from course_lib.core.proof import prove_all, same_as_one_process
from course_lib.core.text import Corpus, Streams
from course_lib.launcher.hangs.call_log import CallLog
from course_lib.model_parallel.placement import Placement, round_robin
from course_lib.pipeline.actions import Action, IllegalSchedule
from course_lib.pipeline.named_schedules import SCHEDULES, gpipe, one_f_one_b
from course_lib.pipeline.pipeline import Pipeline
from course_lib.pipeline.schedule import Schedule
from course_lib.pipeline.simulation import ActionCosts, measured

adam = partial(torch.optim.Adam, lr=0.01)
VOCABULARY = 9
UNIFORM, UNEVEN = [8] * 9, [1, 11, 2, 1, 9, 3, 10, 1, 2]


def model(layers: int = 2) -> SequenceModel:
    return lstm_model(vocabulary=VOCABULARY, hidden=4, layers=layers)


deep = partial(model, layers=6)  # 8 blocks: enough for two virtual stages on each of 4 ranks


def text_batch(lengths: list[int], seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(0, VOCABULARY, (length + 1,), generator=generator) for length in lengths]
    return pad([text[:-1] for text in texts], [text[1:] for text in texts])


# Uniform and uneven in turn: the shapes of all messages change from step to step.
BATCHES = [text_batch(lengths, seed) for seed, lengths in enumerate((UNIFORM, UNEVEN))]
with_ours = {"model": model, "batches": BATCHES, "optimizer": adam, "loss": cross_entropy}
prove, prove_all = partial(same_as_one_process, **with_ours), partial(prove_all, **with_ours)


ALL_CUTS = list(itertools.product([1, 2, 5, 8], [1, 3, 7]))
FEW_CUTS = {2: [(3, 2)], 3: [(4, 2)]}
SIZES = [
    *(pytest.param(stages, cuts, id=f"{stages}-few") for stages, cuts in FEW_CUTS.items()),
    *(pytest.param(stages, ALL_CUTS, id=f"{stages}-all", marks=pytest.mark.slow) for stages in (1, 2, 3, 4)),
]


@pytest.mark.parametrize(("stages", "cuts"), SIZES)
def test_every_schedule_is_the_same_as_one_process(stages, cuts):
    options = [(name, *cut) for name in SCHEDULES for cut in cuts]
    variations = [{"schedule": name, "micro_batches": m, "chunks": c} for name, m, c in options]
    variations += [{"schedule": name, "chunks": 3, "recompute": True} for name in ("1f1b", "zb-v")]
    proofs = prove_all(variations, Pipeline, ranks=stages, model=deep)
    for variation, proof in zip(variations, proofs, strict=True):
        assert proof, f"{variation}: {proof}"
        assert len(proof.steps) == stages * len(BATCHES)


def test_an_illegal_schedule_is_refused_before_a_message_is_sent():
    rows = tuple(tuple(map(Action.of, row.split())) for row in ("F0 B0 F1 B1", "F0 F1 B0 B1"))  # it would deadlock

    def try_it():
        try:
            Pipeline(model(), adam, cross_entropy, schedule=Schedule("illegal", rows, 2, 1))
        except IllegalSchedule as error:
            return str(error), len(CallLog().calls())

    for sentence, calls in launch(try_it, ranks=2):
        assert "stage" in sentence
        assert calls == 0


def test_what_ranks_recorded_is_the_schedule_they_ran():
    schedule = one_f_one_b(3, 4)

    def one_step():
        Pipeline(model(), adam, cross_entropy, schedule=schedule, pace=ActionCosts(0.01, 0.02)).step(BATCHES[0])

    timed = measured(schedule, launch(one_step, ranks=3).spans)
    assert len(timed) == 3 * 8
    assert all(one.paced and one.end - one.start >= 0.01 for one in timed)


def test_a_schedule_of_ones_own_cuts_a_short_batch_into_as_many_chunks_as_it_has_steps():
    own = Schedule.of(["F0.0 F0.1 F0.2 F0.3 B0.3 B0.2 B0.1 B0.0"] * 2)
    short = [text_batch([5, 3, 5]), text_batch([2, 1, 2]), text_batch([1, 1, 1])]
    assert prove(Pipeline, ranks=2, schedule=own, batches=short)


def frozen_first_stage() -> SequenceModel:
    made = model()
    made.blocks["0"].requires_grad_(False)
    made.blocks["2"].requires_grad_(False)
    return made


CORPUS = Corpus.from_text("every stage keeps the state of its layers, from window to window. " * 12)
WINDOWS = list(Streams(CORPUS.tokens, streams=5, window=6))[:4]
carrying = {"model": partial(lstm_model, vocabulary=len(CORPUS.vocabulary), hidden=5, layers=2), "batches": WINDOWS}
UNUSUAL = {
    "cut anywhere in order": (3, {"model": partial(model, layers=3), "placement": Placement.of_cuts(5, [3, 4])}),
    "clipped by the norm over all stages": (3, {"clip": 0.05}),
    "clipped, in a wavefront": (3, {"schedule": "wavefront", "clip": 0.05}),
    "the state is carried": (2, {**carrying, "schedule": "gpipe", "chunks": 3, "carry_state": True}),
    "the state is carried in a wavefront": (
        2,
        {**carrying, "schedule": "wavefront", "chunks": 3, "carry_state": True},
    ),
    "stages in which nothing is trained": (4, {"model": frozen_first_stage}),
    "a batch without sequences": (2, {"batches": [BATCHES[0].rows([]), BATCHES[1]]}),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_the_same_as_one_process_where(case):
    ranks, options = UNUSUAL[case]
    proof = prove(Pipeline, ranks=ranks, **{"micro_batches": 2, "chunks": 2, **options})
    assert proof, proof


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"schedule": "fastest"}, "schedule='fastest': choose naive, gpipe, 1f1b, wavefront"),
        ({"micro_batches": 0}, "micro_batches=0: a schedule needs at least one"),
        ({"schedule": gpipe(3, 2)}, "3 stages on 1 ranks: every stage needs a rank"),
        ({"placement": Placement((0, 0, 1, 1))}, "a placement on 2 stages for 1 ranks"),
        ({"schedule": "zb-v", "virtual": 3}, "virtual=3: zb-v has 2 virtual stages per stage"),
        ({"schedule": "gpipe", "virtual": 2}, "virtual=2: gpipe has 1 virtual stage per stage"),
        ({"schedule": gpipe(1, 2), "virtual": 2}, "virtual=2: the schedule that you gave has virtual=1"),
        ({"schedule": "interleaved", "virtual": 5}, "1 stages of 5 virtual stages need 5 blocks, .* has 4"),
        ({"schedule": "zb-v", "placement": Placement((0, 0, 0, 0))}, "cut the model into 2 consecutive parts"),
        ({"pace": ActionCosts((0.01, 0.01, 0.01))}, "forward has 3 costs for 1 stages"),
    ],
)
def test_bad_options_get_a_sentence(options, sentence):
    with pytest.raises(Exception, match=sentence):
        launch(lambda: Pipeline(model(), adam, cross_entropy, **options), ranks=1)


def tied() -> SequenceModel:
    made = model()
    made.blocks["3"].linear.weight = made.blocks["0"].table.weight
    return made


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (tied, {}, "blocks 0 and 3 share a weight, but live on stages 0 and 1"),
        (model, {"placement": round_robin(4, 2)}, "is not one part per stage"),
    ],
)
def test_what_two_stages_cannot_divide_gets_a_sentence(make, options, sentence):
    with pytest.raises(Exception, match=sentence):
        launch(lambda: Pipeline(make(), adam, cross_entropy, **options), ranks=2)
