"""Stages do what a schedule says: whatever is legal is executed, and what is held is what the schedule holds."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_lib import launch, trace
from course_lib.core.model import SequenceModel, cross_entropy, lstm_model
from course_lib.core.text import Corpus, Streams
from course_lib.model_parallel.placement import Placement
from course_lib.pipeline.message_order import Mail
from course_lib.pipeline.named_schedules import SCHEDULES, make_schedule
from course_lib.pipeline.pipeline import Pipeline
from course_lib.pipeline.schedule import Schedule, dependencies
from course_lib.pipeline.simulation import ActionCosts, makespan, measured, simulate
from course_lib.sharding.hybrid import Hybrid
from tests.pipeline.legal_schedules import any_legal_schedules
from tests.pipeline.test_pipeline import BATCHES, adam, deep, frozen_first_stage, prove, prove_all
from tests.pipeline.test_split_backward import Drop


def several(stages: int) -> st.SearchStrategy[list[Schedule]]:
    """Random legal schedules, with virtual stages, split backward passes and recomputation; one launch runs them."""
    virtual = st.integers(1, min(3, 8 // stages))
    return st.lists(any_legal_schedules(st.just(stages), virtual=virtual), min_size=5, max_size=5)


def assert_executed(schedules: list[Schedule]) -> None:
    variations = [{"schedule": schedule} for schedule in schedules]
    proofs = prove_all(variations, Pipeline, ranks=len(schedules[0].stages), model=deep)
    for schedule, proof in zip(schedules, proofs, strict=True):
        assert proof, f"{schedule}\n{proof}"


@pytest.mark.parametrize(
    ("stages", "examples"), [(2, 2), *(pytest.param(stages, 8, marks=pytest.mark.slow) for stages in range(1, 7))]
)
def test_any_legal_schedule_is_the_same_as_one_process(stages, examples):
    @settings(deadline=None, max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(several(stages))
    def run(schedules):
        assert_executed(schedules)

    run()


def held_by(schedules: list[Schedule]) -> list[list]:
    held = []
    for schedule in schedules:
        strategy = Pipeline(deep(), adam, cross_entropy, schedule=schedule)
        strategy.step(BATCHES[0])
        execution = strategy.execution
        assert not any([execution.saved, execution.for_weights, execution.beginnings, execution.mail.local])
        held.append(execution.held)
    return held


@pytest.mark.slow
@settings(deadline=None, max_examples=3, suppress_health_check=list(HealthCheck))
@given(several(4))
def test_what_a_stage_holds_after_every_action_is_what_the_schedule_says(at_random):
    named = [make_schedule(name, 4, 5, chunks) for name in SCHEDULES for chunks in (1, 2)]
    named += [make_schedule(name, 4, 3, 2, recompute=True) for name in ("1f1b", "wavefront", "zb-v")]
    schedules = named + at_random
    for stage, held in enumerate(launch(held_by, schedules, ranks=4, timeout=300)):
        for schedule, of_one in zip(schedules, held, strict=True):
            assert tuple(of_one) == schedule.held[stage], schedule


@pytest.mark.parametrize("schedule", ["interleaved", "zb-v"])
def test_every_virtual_stage_carries_its_own_state_from_batch_to_batch(schedule):
    corpus = Corpus.from_text("every part of the model keeps the state of its layers, from window to window. " * 12)
    windows = list(Streams(corpus.tokens, streams=5, window=6))[:4]
    whole = partial(lstm_model, vocabulary=len(corpus.vocabulary), hidden=5, layers=4)
    options = {"schedule": schedule, "micro_batches": 2, "chunks": 3, "carry_state": True, "recompute": True}
    proof = prove(Pipeline, ranks=2, model=whole, batches=windows, **options)
    assert proof, proof


UNUSUAL = {
    "parts in which nothing is trained pass the gradient on": {"model": frozen_first_stage, "micro_batches": 3},
    "parts may be cut anywhere in order": {"placement": Placement.of_cuts(8, [3, 4, 5]), "micro_batches": 3},
    "a batch without sequences moves nothing": {"batches": [BATCHES[0].rows([]), BATCHES[1]]},
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_on_virtual_stages(case):
    proof = prove(Pipeline, ranks=2, **{"model": deep, "schedule": "zb-v", "chunks": 2, **UNUSUAL[case]})
    assert proof, proof


@pytest.mark.parametrize("schedule", ["zb-h1", "interleaved"])
def test_gradients_are_sent_to_the_other_replicas_while_stages_still_work(schedule):
    def sent_early():
        strategy, early = Hybrid(deep().double(), adam, cross_entropy, replicas=2, schedule=schedule), []
        finish = strategy.sum_over_replicas.finish
        strategy.sum_over_replicas.finish = lambda: [early.append(len(strategy.sum_over_replicas.sending)), finish()]
        strategy.step(strategy.share(BATCHES[0]))
        return early[0], len(list(strategy.model.parameters()))

    assert all(early == every for early, every in launch(sent_early, ranks=4))


def with_dropout() -> SequenceModel:
    blocks = [block for _, block in deep().numbered()]
    return SequenceModel(dict(enumerate([*blocks[:2], Drop(), *blocks[2:4], Drop(), blocks[-1]])))


@pytest.mark.slow
def test_what_was_dropped_is_dropped_again_when_it_is_computed_again():
    def gradients(recompute):
        torch.manual_seed(0)
        options = {"schedule": "zb-v", "micro_batches": 3, "chunks": 2, "recompute": recompute}
        strategy = Pipeline(with_dropout().double(), adam, cross_entropy, **options)
        torch.manual_seed(dist.get_rank())
        strategy.step(BATCHES[0])
        return strategy.full_gradients(), torch.rand(1)

    kept, next_number = launch(gradients, False, ranks=2)[0]
    again, same_number = launch(gradients, True, ranks=2)[0]
    for name, gradient in kept.items():
        torch.testing.assert_close(again[name], gradient, rtol=0, atol=1e-10)
    assert next_number == same_number


def paced_steps(schedule, pace, steps=3):
    """The spans of each step after the first."""
    strategy = Pipeline(deep(), adam, cross_entropy, schedule=schedule, pace=pace)
    found = []
    for _ in range(steps + 1):
        dist.barrier()
        trace.recorder.spans.clear()
        strategy.step(BATCHES[0])
        found.append(list(trace.recorder.spans))
    return found[1:]


def test_a_message_is_under_way_as_long_as_its_link_is_paced_to():
    schedule, pace = make_schedule("zb-v", 2, 2), ActionCosts(0.01, 0.02, link=0.05)
    run = launch(paced_steps, schedule, pace, ranks=2)
    simulated = simulate(schedule, pace).makespan
    for ranks in zip(*run, strict=True):
        timed = measured(schedule, [span for spans in ranks for span in spans])
        assert makespan(timed) > simulated - 0.005  # never earlier; how much later is for the bench to say
        starts, ends = ({(one.stage, one.action): getattr(one, when) for one in timed} for when in ("start", "end"))
        for (stage, action), start in starts.items():
            for needed in dependencies(action, stage, schedule):
                assert start >= ends[needed] + (0.05 if needed[0] != stage else 0) - 0.002


def test_what_has_been_received_is_let_go_of_before_the_step_ends():
    def most_messages():
        most = []

        class Counting(Mail):
            def deliver(self, action, tensor):
                super().deliver(action, tensor)
                most.append(sum(map(len, self.sent.values())))

        from course_lib.pipeline import pipeline

        pipeline.Mail = Counting
        strategy = Pipeline(deep(), adam, cross_entropy, schedule="1f1b", micro_batches=9)
        strategy.step(BATCHES[0])
        return max(most)

    first, second, third, _ = launch(most_messages, ranks=4)
    assert max(first, second, third) <= 8  # of 9 to 18 that are sent


def test_parts_on_one_rank_hand_over_without_a_message():
    def received():
        Pipeline(deep(), adam, cross_entropy, schedule="zb-v", micro_batches=3).step(BATCHES[0])
        return sum(span.name == "receive" for span in trace.recorder.spans)

    assert list(launch(received, ranks=2)) == [6, 6]  # 3 activations and 3 gradients each: none at the tip of the V
    assert list(launch(received, ranks=1)) == [0]
