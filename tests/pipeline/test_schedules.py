"""A schedule is legal or refused with the reason, and its time, bubble and memory are what the formulas say."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.pipeline.actions import Action, Held, IllegalSchedule, peak_held
from course_lib.pipeline.named_schedules import SCHEDULES, gpipe, naive, one_f_one_b, wavefront
from course_lib.pipeline.schedule import Schedule, check, dependencies
from course_lib.pipeline.simulation import (
    ActionCosts,
    TimedAction,
    bubble,
    busy,
    makespan,
    measured,
    peak_share,
    simulate,
    simulate_until_stuck,
)
from course_lib.runtime.trace import Span
from tests.pipeline.legal_schedules import any_legal_schedules, legal_schedules, rules_of

quickly = settings(deadline=None, max_examples=40)
stage_counts, micro_batch_counts, chunk_counts = st.integers(1, 6), st.integers(1, 12), st.integers(1, 8)
makers = st.sampled_from(list(SCHEDULES.values()))
times = st.floats(0.1, 5.0)


@st.composite
def costs_for(draw: st.DrawFn, stages: int) -> ActionCosts:
    each = st.lists(times, min_size=stages, max_size=stages)
    return ActionCosts(draw(st.one_of(times, each)), draw(st.one_of(times, each)), draw(st.floats(0.0, 2.0)))


def longest_path(schedule: Schedule, costs: ActionCosts) -> float:
    """The time that even an infinity of devices could not save: the longest chain of needs."""
    needs = rules_of(schedule)
    ends: dict = {}
    for stage, action in TopologicalSorter(needs).static_order():
        starts = [ends[step] + costs.link * (step[0] != stage) for step in needs[stage, action]]
        ends[stage, action] = max(starts, default=0.0) + costs.of(action, stage, schedule)
    return max(ends.values())


def has_a_circle(schedule: Schedule) -> bool:
    """The same question put to the standard library: what each step needs, and what its stage does before it."""
    graph = {step: set(others) for step, others in rules_of(schedule).items()}
    for stage, actions in enumerate(schedule.stages):
        for before, after in pairwise(actions):
            graph[stage, after].add((stage, before))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False


def orders(chains: list[list[Action]]) -> list[tuple[Action, ...]]:
    """Every way to do these chains of actions on one stage."""
    if not any(chains):
        return [()]
    heads = [number for number, chain in enumerate(chains) if chain]
    rest = {number: [chain[number == other :] for other, chain in enumerate(chains)] for number in heads}
    return [(chains[number][0], *order) for number in heads for order in orders(rest[number])]


def refusal(schedule: Schedule) -> str:
    with pytest.raises(IllegalSchedule) as refused:
        check(schedule)
    return str(refused.value)


def with_stage(schedule: Schedule, stage: int, actions: Sequence[Action]) -> Schedule:
    stages = list(schedule.stages)
    stages[stage] = tuple(actions)
    return replace(schedule, stages=tuple(stages))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_of_every_size_is_legal(name: str):
    for stages in range(1, 6):
        for micro_batches in range(1, 10):
            for chunks in range(1, 8):
                schedule = SCHEDULES[name](stages, micro_batches, chunks)
                check(schedule)
                assert (schedule.name, len(schedule.stages)) == (name, stages)


@pytest.mark.parametrize(("maker", "held"), [(gpipe, (8, 8, 8, 8)), (one_f_one_b, (4, 3, 2, 1))])
def test_four_stages_and_eight_micro_batches_are_as_in_the_literature(maker, held: tuple[int, ...]):
    simulation = simulate(maker(4, 8))
    assert simulation.makespan == 22
    assert simulation.bubble == pytest.approx(3 / 11)
    assert simulation.busy == (16, 16, 16, 16)
    assert simulation.peak == held
    assert simulation.peak_share == tuple(Held(count / 8) for count in held)


def test_one_micro_batch_fills_the_stages_only_if_it_is_cut_in_time():
    assert simulate(gpipe(4, 1)).bubble == pytest.approx(3 / 4)
    assert simulate(wavefront(4, 1, 8)).bubble == pytest.approx(3 / 11)
    assert simulate(wavefront(4, 1, 64)).bubble == pytest.approx(3 / 67)


@quickly
@given(st.sampled_from([gpipe, one_f_one_b, wavefront]), stage_counts, micro_batch_counts, chunk_counts)
def test_the_bubble_is_what_the_formula_says(maker, stages: int, micro_batches: int, chunks: int):
    simulation = simulate(maker(stages, micro_batches, chunks))
    pieces = micro_batches * chunks
    assert simulation.makespan == 2 * (pieces + stages - 1)
    assert simulation.bubble == pytest.approx((stages - 1) / (pieces + stages - 1))


@quickly
@given(stage_counts, micro_batch_counts, times, times)
def test_naively_one_stage_works_at_a_time(stages: int, micro_batches: int, forward: float, backward: float):
    simulation = simulate(naive(stages, micro_batches), ActionCosts(forward, backward))
    assert simulation.makespan == pytest.approx(stages * micro_batches * (forward + backward))
    in_time = sorted(simulation.timed, key=lambda one: one.start)
    assert all(before.end <= after.start for before, after in pairwise(in_time))
    assert simulation.peak == (1,) * stages


@quickly
@given(stage_counts, micro_batch_counts, chunk_counts)
def test_each_schedule_holds_what_its_docstring_says(stages: int, micro_batches: int, chunks: int):
    sizes, pieces = (stages, micro_batches, chunks), micro_batches * chunks
    from_the_end = [stages - stage for stage in range(stages)]
    assert naive(*sizes).peak == (chunks,) * stages
    assert gpipe(*sizes).peak == (pieces,) * stages
    assert one_f_one_b(*sizes).peak == tuple(min(left, micro_batches) * chunks for left in from_the_end)
    assert wavefront(*sizes).peak == tuple(min(chunks - 1 + left, pieces) for left in from_the_end)


@quickly
@given(stage_counts, micro_batch_counts)
def test_a_wavefront_of_one_chunk_is_1f1b(stages: int, micro_batches: int):
    assert wavefront(stages, micro_batches, 1).stages == one_f_one_b(stages, micro_batches).stages


def test_no_order_is_as_fast_as_the_wavefront_and_holds_less():
    ours = simulate(wavefront(2, 2, 2))
    assert ours.peak == (3, 2)  # and nobody holds less than a whole micro-batch, here 2
    rows = orders([list(map(Action.of, text.split())) for text in ("F0.0 F0.1 B0.1 B0.0", "F1.0 F1.1 B1.1 B1.0")])
    legal = []
    for stages in itertools.product([row for row in rows if peak_held(row) < 3], rows):
        with contextlib.suppress(IllegalSchedule):
            legal.append(simulate(Schedule("any", stages, 2, 2)).makespan)
    assert min(legal) > ours.makespan


@quickly
@given(any_legal_schedules(), st.data())
def test_any_legal_schedule_is_accepted_and_takes_at_least_its_longest_path(schedule: Schedule, data):
    check(schedule)
    costs = data.draw(costs_for(len(schedule.stages)))
    simulation = simulate(schedule, costs)
    assert simulation.makespan >= longest_path(schedule, costs) - 1e-9
    assert simulation.makespan >= max(simulation.busy) - 1e-9
    assert 0 <= simulation.bubble < 1


@quickly
@given(any_legal_schedules(), st.data())
def test_an_action_starts_when_its_stage_is_free_and_what_it_needs_has_arrived(schedule: Schedule, data):
    costs = data.draw(costs_for(len(schedule.stages)))
    ends = {(one.stage, one.action): one.end for one in simulate(schedule, costs).timed}
    starts = {(one.stage, one.action): one.start for one in simulate(schedule, costs).timed}
    needs = rules_of(schedule)
    for stage, actions in enumerate(schedule.stages):
        for before, action in zip((None, *actions), actions, strict=False):
            arrivals = [ends[step] + costs.link * (step[0] != stage) for step in needs[stage, action]]
            assert starts[stage, action] == max([ends.get((stage, before), 0.0), *arrivals])
            assert ends[stage, action] == starts[stage, action] + costs.of(action, stage, schedule)


@quickly
@given(any_legal_schedules())
def test_the_library_and_the_tests_agree_on_what_an_action_needs(schedule: Schedule):
    needs = rules_of(schedule)
    for (stage, action), steps in needs.items():
        listed = dependencies(action, stage, schedule)
        assert set(listed) == steps
        assert len(listed) == len(steps)


@settings(deadline=None, max_examples=150)
@given(any_legal_schedules(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_an_order_is_refused_exactly_if_it_has_a_circle(schedule: Schedule, swaps: int, choice: random.Random):
    for _ in range(swaps):
        stage = choice.randrange(len(schedule.stages))
        actions = list(schedule.stages[stage])
        first, second = choice.randrange(len(actions)), choice.randrange(len(actions))
        actions[first], actions[second] = actions[second], actions[first]
        schedule = with_stage(schedule, stage, actions)
    if has_a_circle(schedule):
        assert refusal(schedule)
    else:
        check(schedule)


@quickly
@given(legal_schedules(), st.data())
def test_a_missing_action_is_named(schedule: Schedule, data):
    stage = data.draw(st.integers(0, len(schedule.stages) - 1))
    action = data.draw(st.sampled_from(schedule.stages[stage]))
    broken = with_stage(schedule, stage, [one for one in schedule.stages[stage] if one != action])
    sentence = f"stage {stage} never does {schedule.label(action)}"
    if any(broken.stages):
        assert refusal(broken).startswith(sentence)
    if len(schedule.stages) > 1:
        assert ", but stage " in refusal(broken)


@quickly
@given(legal_schedules(), st.data())
def test_an_action_done_twice_is_named(schedule: Schedule, data):
    stage = data.draw(st.integers(0, len(schedule.stages) - 1))
    action = data.draw(st.sampled_from(schedule.stages[stage]))
    place = data.draw(st.integers(0, len(schedule.stages[stage])))
    actions = list(schedule.stages[stage])
    actions.insert(place, action)
    assert refusal(with_stage(schedule, stage, actions)).startswith(
        f"stage {stage} does {schedule.label(action)} 2 times: every stage does each"
    )


@quickly
@given(legal_schedules(), st.data())
def test_a_backward_before_its_forward_is_named(schedule: Schedule, data):
    stage = data.draw(st.integers(0, len(schedule.stages) - 1))
    m, c = data.draw(st.integers(0, schedule.micro_batches - 1)), schedule.chunks - 1
    actions = [one for one in schedule.stages[stage] if one != Action("B", m, c)]
    actions.insert(actions.index(Action("F", m, c)), Action("B", m, c))
    names = [schedule.label(Action(kind, m, c)) for kind in "BF"]
    assert refusal(with_stage(schedule, stage, actions)) == (
        f"stage {stage} does {names[0]} before {names[1]}: a backward needs what its forward saved"
    )


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        ([], "there is nothing to do"),
        ([[], []], "there is nothing to do"),
        (["F0 B0", ""], "stage 1 never does F0, but stage 0 does: every stage does each"),
        (["F1 B1", "F1 B1"], "stage 0 never does F0: every stage does each"),
        (
            ["F0.1 F0.0 B0.1 B0.0"],
            "stage 0 does F0.1 before F0.0: a chunk starts from the final state of the previous chunk",
        ),
        (
            ["F0.0 F0.1 B0.0 B0.1"],
            "stage 0 does B0.0 before B0.1: the gradient of the state comes from the next chunk",
        ),
        (["F0 F1 B0", "F0 F1 B0 B1"], "stage 0 never does B1, but stage 1 does"),
        (
            ["F0 B0 F1 B1", "F0 F1 B0 B1"],
            "this order deadlocks: stage 0 waits with B0 for stage 1's B0, which stage 1 does after F1, "
            "which waits for stage 0's F1, which comes after B0",
        ),
        (
            ["F0 B0 F1 B1", "F0 B0 F1 B1", "F0 F1 B0 B1"],
            "this order deadlocks: stage 1 waits with B0 for stage 2's B0, which stage 2 does after F1, "
            "which waits for stage 1's F1, which comes after B0",
        ),
        (
            ["F0.0 F0.1 B0.1 B0.0 F1.0 F1.1 B1.1 B1.0", "F0.0 F0.1 F1.0 B0.1 B0.0 F1.1 B1.1 B1.0"],
            "this order deadlocks: stage 0 waits with B0.1 for stage 1's B0.1, which stage 1 does after F1.0, "
            "which waits for stage 0's F1.0, which comes after B0.1",
        ),
    ],
)
def test_an_illegal_schedule_is_refused_with_the_reason(stages: list, sentence: str):
    with pytest.raises(IllegalSchedule, match="^" + re.escape(sentence)):
        Schedule.of(stages)


def test_an_action_of_a_micro_batch_that_is_not_there_is_named():
    broken = replace(gpipe(2, 3), micro_batches=2)
    assert refusal(broken) == (
        "stage 0 does F2, which does not exist: the schedule has micro_batches=2 and chunks=1, counted from 0"
    )
    assert "stage 0 does F0.1, which does not exist" in refusal(replace(gpipe(1, 1, 2), chunks=1))


@quickly
@given(makers, stage_counts, micro_batch_counts, chunk_counts)
def test_a_schedule_can_be_written_down_and_read_again(maker, stages: int, micro_batches: int, chunks: int):
    schedule = maker(stages, micro_batches, chunks)
    name, *rows = str(schedule).splitlines()
    assert Schedule.of([row.partition(": ")[2] for row in rows], name, schedule.layout) == schedule


def test_a_schedule_reads_well():
    assert str(one_f_one_b(2, 2)) == "1f1b\nstage 0: F0 F1 B0 B1\nstage 1: F0 B0 F1 B1"
    assert str(wavefront(1, 1, 2)) == "wavefront\nstage 0: F0.0 F0.1 B0.1 B0.0"
    assert (str(Action("F", 3)), str(Action("B", 3, 2))) == ("F3", "B3.2")
    assert repr(simulate(one_f_one_b(2, 2))) == "1f1b: makespan 6, bubble 33.3%, held at most 100% 50% of the batch"


@quickly
@given(makers, stage_counts, micro_batch_counts, chunk_counts)
def test_costs_of_a_whole_batch_are_shared_by_its_pieces(maker, stages: int, micro_batches: int, chunks: int):
    schedule, whole = maker(stages, micro_batches, chunks), ActionCosts([3.0] * stages, 6.0, link=0.5)
    simulation = simulate(schedule, whole.split_over(schedule))
    assert simulation.busy == pytest.approx((9.0,) * stages)
    assert whole.split_over(schedule).link == 0.5


def test_a_link_delays_the_next_stage_and_occupies_nobody():
    simulation = simulate(gpipe(2, 1), ActionCosts(forward=(1, 2), backward=(3, 4), link=10))
    assert [(one.start, one.end) for one in simulation.timed] == [(0, 1), (11, 13), (13, 17), (27, 30)]
    assert simulation.busy == (4, 6)


def test_a_slow_link_costs_the_wavefront_time_that_whole_micro_batches_hide():
    link, sizes = ActionCosts(link=0.25), (4, 4, 4)
    assert [simulate(maker(*sizes), link).makespan for maker in (gpipe, one_f_one_b, wavefront)] == [39.5, 39.5, 44]


def test_a_simulation_gives_spans_that_a_timeline_draws():
    spans = simulate(naive(2)).spans
    assert spans[0] == Span(0, "forward", 0.0, 1.0)
    names = ["forward", "forward", "backward", "backward"]
    assert [(span.rank, span.name) for span in spans] == list(zip((0, 1, 1, 0), names, strict=True))


@quickly
@given(any_legal_schedules())
def test_spans_of_a_run_become_the_actions_of_its_schedule(schedule: Schedule):
    simulation = simulate(schedule, ActionCosts(0.25, 0.5))
    others = [Span(0, "send", 6.0, 6.5, peer=1), Span(0, "update", 99.0, 99.5)]
    run = [replace(span, start=span.start + 7, end=span.end + 7, paced=True) for span in simulation.spans]
    timed = measured(schedule, others + run[::-1])
    assert all(one.paced for one in timed)
    assert {replace(one, paced=False) for one in timed} == set(simulation.timed)
    assert (makespan(timed), bubble(timed)) == pytest.approx((simulation.makespan, simulation.bubble))
    assert (busy(timed), peak_share(timed)) == (simulation.busy, simulation.peak_share)


def test_spans_of_another_schedule_are_refused():
    with pytest.raises(ValueError, match="rank 1 recorded 4 actions that are not the 4 actions of stage 1"):
        measured(gpipe(2, 2), simulate(one_f_one_b(2, 2)).spans)


def test_nothing_takes_no_time():
    assert (makespan([]), busy([]), bubble([]), peak_share([])) == (0, (), 0, ())
    assert bubble([TimedAction(0, Action("F", 0), 1.0, 1.0)]) == 0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: gpipe(0, 1), "stages=0: a schedule needs at least one"),
        (lambda: one_f_one_b(2, 0), "micro_batches=0: a schedule needs"),
        (lambda: wavefront(2, 1, 0), "chunks=0: a schedule needs"),
        (lambda: Action("X", 0), "kind='X': an action is F"),
        (lambda: Action("F", -1), "micro_batch=-1, chunk=0, virtual=0: all of them count from 0"),
        (lambda: Schedule.of(["F0 b0"]), "'b0' is not an action: write F, B, W or R"),
        (lambda: Schedule.of([[("F", 0)]]), "is not an action: write F, B, W or R"),
        (lambda: ActionCosts(forward=(1, -1)), "forward=.*: a cost is a time, 0 or more"),
        (lambda: simulate(naive(2), ActionCosts(backward=(1,))), "backward has 1 costs for 2 stages: give one number"),
    ],
)
def test_bad_input_gets_a_sentence(make, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_schedule_that_gets_stuck_is_played_up_to_there_and_says_who_waits_for_what():
    f0, f1, b0, b1 = (Action.of(name) for name in ("F0", "F1", "B0", "B1"))
    stuck = Schedule("stuck", ((f0, b0, f1, b1), (f0, f1, b0, b1)), micro_batches=2)
    timed, waiting = simulate_until_stuck(stuck)
    assert [(one.stage, one.action, one.start, one.end) for one in timed] == [(0, f0, 0, 1), (1, f0, 1, 2)]
    assert [(one.stage, one.action, one.needs) for one in waiting] == [(0, b0, (1, b0)), (1, f1, (0, f1))]
