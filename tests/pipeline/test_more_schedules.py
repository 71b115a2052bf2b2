"""Virtual stages, split backward passes and recomputation: orders, bubbles and memory as the literature has them."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.pipeline.actions import Action, Held, IllegalSchedule, Layout
from course_lib.pipeline.named_schedules import (
    SCHEDULES,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    make_schedule,
    one_f_one_b,
    rounds_of,
    with_recomputation,
    zero_bubble_h1,
    zero_bubble_v,
)
from course_lib.pipeline.schedule import Schedule, check
from course_lib.pipeline.simulation import ActionCosts, simulate
from tests.pipeline.legal_schedules import any_legal_schedules, where

quickly = settings(deadline=None, max_examples=60)
stage_counts, micro_batch_counts, chunk_counts = st.integers(1, 6), st.integers(1, 8), st.integers(1, 4)
virtual_counts = st.integers(1, 3)
THIRDS = ActionCosts(forward=1, backward=2)  # F, B and W take equally long


@st.composite
def named_schedules(draw: st.DrawFn) -> Schedule:
    """Every schedule that has a name, in every size."""
    name = draw(st.sampled_from(list(SCHEDULES)))
    virtual = draw(virtual_counts) if name in ("interleaved", "looped-bfs") else None
    sizes = draw(stage_counts), draw(micro_batch_counts), draw(chunk_counts)
    return make_schedule(name, *sizes, virtual, recompute=draw(st.booleans()))


@settings(deadline=None, max_examples=300)
@given(named_schedules())
def test_every_schedule_of_every_size_is_legal_and_complete(schedule: Schedule):
    check(schedule)
    for stage, row in enumerate(schedule.stages):
        kinds = [action.kind for action in row]
        assert kinds.count("F") == kinds.count("B") == schedule.pieces
        assert kinds.count("W") == (schedule.pieces if schedule.name.startswith("zb") else 0)
        assert kinds.count("R") == (schedule.pieces if "recomputation" in schedule.name else 0)
        assert schedule.held[stage][-1] == Held(0, 0)


@quickly
@given(named_schedules(), st.floats(0.5, 4.0), st.floats(0.0, 1.0))
def test_every_stage_works_as_long_as_its_share_of_the_batch_takes(schedule: Schedule, backward: float, link: float):
    simulation = simulate(schedule, ActionCosts(3.0, backward, link).split_over(schedule))
    again = 3.0 if "recomputation" in schedule.name else 0.0
    assert simulation.busy == pytest.approx((3.0 + again + backward,) * len(schedule.stages))


# Where the parts lie.


@quickly
@given(stage_counts, virtual_counts, st.sampled_from(["loop", "v"]))
def test_parts_go_round_and_round_or_to_and_fro(stages: int, virtual: int, style: str):
    layout = Layout(stages, virtual, style)
    places = [layout.stage_at(position) for position in range(layout.positions)]
    assert places == [where(position, stages, style) for position in range(stages * virtual)]
    assert sorted(places) == list(product(range(stages), range(virtual)))
    for position, place in enumerate(places):
        assert layout.position(*place) == position
        assert layout.neighbor(*place, -1) == (places[position - 1] if position else None)
        assert layout.neighbor(*place, 1) == (places[position + 1] if position + 1 < len(places) else None)


def test_a_message_crosses_a_link_and_the_tip_of_a_v_does_not():
    costs = ActionCosts(1, 1, link=10)
    assert simulate(Schedule.of(["F0v0 F0v1 B0v1 B0v0"] * 2, layout="v"), costs).makespan == 8 + 4 * 10
    assert simulate(Schedule.of(["F0v0 F0v1 B0v1 B0v0"] * 2, layout="loop"), costs).makespan == 8 + 6 * 10


# Virtual stages.


@pytest.mark.parametrize("maker", [interleaved_one_f_one_b, looped_bfs])
@pytest.mark.parametrize(("stages", "rounds", "virtual"), [(2, 1, 2), (2, 3, 3), (4, 2, 2), (4, 2, 3), (6, 1, 2)])
def test_the_bubble_shrinks_with_the_number_of_virtual_stages(maker, stages: int, rounds: int, virtual: int):
    micro_batches = rounds * stages
    simulation = simulate(maker(stages, micro_batches, virtual=virtual))
    work = 2 * micro_batches * virtual
    assert simulation.makespan / work - 1 == pytest.approx((stages - 1) / (virtual * micro_batches))


@quickly
@given(stage_counts, micro_batch_counts, chunk_counts, st.integers(2, 3))
def test_virtual_schedules_hold_what_their_docstrings_say(stages: int, micro_batches: int, chunks: int, virtual: int):
    largest = len(rounds_of(stages, micro_batches)[0])
    most = [(virtual - 1) * largest + 2 * (stages - stage) - 1 for stage in range(stages)]
    interleaved = interleaved_one_f_one_b(stages, micro_batches, chunks, virtual)
    everything = micro_batches * virtual
    assert interleaved.peak == tuple(min(count, everything) * chunks for count in most)
    assert looped_bfs(stages, micro_batches, chunks, virtual).peak == (everything * chunks,) * stages


@quickly
@given(stage_counts, micro_batch_counts)
def test_rounds_have_at_least_as_many_micro_batches_as_stages_and_differ_by_one_at_most(stages: int, pieces: int):
    rounds = rounds_of(stages, pieces)
    assert [m for members in rounds for m in members] == list(range(pieces))
    sizes = [len(members) for members in rounds]
    assert min(sizes) >= min(stages, pieces)
    assert max(sizes) - min(sizes) <= 1


@quickly
@given(stage_counts, micro_batch_counts, chunk_counts)
def test_with_one_part_per_stage_interleaved_is_1f1b(stages: int, micro_batches: int, chunks: int):
    ours = interleaved_one_f_one_b(stages, micro_batches, chunks, virtual=1)
    assert ours.stages == one_f_one_b(stages, micro_batches, chunks).stages


# Split backward passes.


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (2, 4), (4, 4), (4, 8), (6, 8)])
def test_zb_h1_has_a_third_of_the_bubble_of_1f1b(stages: int, micro_batches: int):
    whole, split = (simulate(maker(stages, micro_batches), THIRDS) for maker in (one_f_one_b, zero_bubble_h1))
    work = 3 * micro_batches
    assert whole.makespan == work + 3 * (stages - 1)
    assert split.makespan == work + (stages - 1)


@quickly
@given(stage_counts, micro_batch_counts, chunk_counts)
def test_zb_h1_holds_on_every_stage_no_more_than_1f1b_on_its_first(stages: int, micro_batches: int, chunks: int):
    most = one_f_one_b(stages, micro_batches, chunks).peak_share[0].total
    for held in zero_bubble_h1(stages, micro_batches, chunks).peak_share:
        assert held.total <= most + 1e-12


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 3), (2, 8), (3, 5), (4, 7), (4, 8), (6, 24)])
def test_zb_v_waits_only_to_fill_the_pipeline_once(stages: int, micro_batches: int):
    simulation = simulate(zero_bubble_v(stages, micro_batches), THIRDS)
    assert simulation.makespan == 6 * micro_batches + stages - 1
    for stage in range(stages):
        own = [one for one in simulation.timed if one.stage == stage]
        assert all(after.start == before.end for before, after in pairwise(own))


@quickly
@given(stage_counts, micro_batch_counts, chunk_counts)
def test_zb_v_holds_as_much_on_every_stage_as_1f1b_on_its_first(stages: int, micro_batches: int, chunks: int):
    most = one_f_one_b(stages, micro_batches, chunks).peak_share[0].total
    held = [share.total for share in zero_bubble_v(stages, micro_batches, chunks).peak_share]
    assert max(held) <= most + 1e-12
    if micro_batches >= stages:
        assert held[-1] == pytest.approx(most)


def test_what_waits_for_weight_gradients_is_held_from_b_to_w():
    schedule = Schedule.of(["F0 B0 F1 B1 W1 W0"])
    assert schedule.held == ((Held(1, 0), Held(0, 1), Held(1, 1), Held(0, 2), Held(0, 1), Held(0, 0)),)
    assert schedule.peak == (1,)
    assert schedule.peak_share == (Held(0.5, 0.5),)
    assert schedule.peak_share[0].percent == "100%"


def test_a_split_backward_pass_costs_its_two_halves_and_a_whole_one_all():
    schedule = Schedule.of(["F0 B0 F1 B1 W1"])
    lengths = [one.end - one.start for one in simulate(schedule, ActionCosts(1, 8)).timed]
    assert lengths == [1, 8, 1, 4, 4]
    given = ActionCosts(1, 8, input_gradients=5, weight_gradients=2)
    assert [one.end - one.start for one in simulate(schedule, given).timed] == [1, 8, 1, 5, 2]


# Recomputation.


@quickly
@given(named_schedules())
def test_with_recomputation_activations_of_one_piece_are_held_at_a_time(schedule: Schedule):
    again = with_recomputation(schedule)
    check(again)
    assert again.peak == (1,) * len(schedule.stages)
    assert with_recomputation(again).stages == again.stages
    for stage, row in enumerate(again.stages):
        assert [one for one in row if one.kind != "R"] == [one for one in schedule.stages[stage] if one.kind != "R"]


def test_a_forward_pass_made_again_costs_a_forward_pass():
    schedule = make_schedule("1f1b", 1, 2, recompute=True)
    assert str(schedule) == "1f1b + recomputation\nstage 0: F0 R0 B0 F1 R1 B1"
    assert simulate(schedule, ActionCosts(2, 3)).busy == (14,)


# Costs.


def test_costs_may_be_given_for_every_position_of_the_model():
    schedule = Schedule.of(["F0v0 F0v1 B0v1 B0v0"] * 2, layout="v")
    timed = simulate(schedule, ActionCosts(forward=(1, 2, 3, 4), backward=0)).timed
    forwards = [(one.stage, one.action.virtual, one.end - one.start) for one in timed if one.action.kind == "F"]
    assert forwards == [(0, 0, 1), (1, 0, 2), (1, 1, 3), (0, 1, 4)]
    with pytest.raises(ValueError, match="forward has 3 costs for 2 stages: give one number, or one per stage, or 4"):
        simulate(schedule, ActionCosts(forward=(1, 2, 3)))


def test_what_starting_an_action_costs_is_added_to_each_part_of_a_split_backward_pass():
    schedule = Schedule.of(["F0 B0 W0 F1 B1"])
    lengths = [one.end - one.start for one in simulate(schedule, ActionCosts(1, 2).with_overhead(10)).timed]
    assert lengths == [11, 11, 11, 11, 12]


# Refused.


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        (["F0 W0 B0"], "stage 0 does W0 before B0: weight gradients are computed from what the backward pass"),
        (["F0 B0 R0"], "stage 0 does B0 before R0: a backward needs the recomputed activations"),
        (["R0 F0 B0"], "stage 0 does R0 before F0: a recomputation repeats an earlier forward"),
        (["F0v1 F0v0 B0v1 B0v0"], "stage 0 does F0v1 before F0v0: its input comes from there"),
        (["F0v0 F0v1 B0v0 B0v1"], "stage 0 does B0v0 before B0v1: its gradient comes from there"),
        (["F0v0 F0v1 B0v1"], "stage 0 never does B0v0: every stage does each"),
        (["F0 B0 W0 W0"], "stage 0 does W0 2 times"),
        (
            ["F0v1 F0v0 B0v1 B0v0", "F0v0 F0v1 B0v1 B0v0"],
            "this order deadlocks: stage 0 waits with F0v1 for stage 1's F0v0, which waits for stage 0's F0v0, which "
            "comes after F0v1",
        ),
        (
            ["F0v1 F0v0 B0v1 B0v0", "F0v0 F0v1 B0v1 B0v0", "F0v0 F0v1 B0v1 B0v0"],
            "this order deadlocks: stage 0 waits with F0v1 for stage 2's F0v0, which waits for stage 1's F0v0, which "
            "waits for stage 0's F0v0, which comes after F0v1",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason_and_the_circle_named(stages: list, sentence: str):
    with pytest.raises(IllegalSchedule, match="^" + re.escape(sentence)):
        Schedule.of(stages)


@settings(deadline=None, max_examples=150)
@given(any_legal_schedules(stages=st.integers(2, 4)), st.randoms(use_true_random=False))
def test_every_circle_that_is_named_leads_from_stage_to_stage_and_back(schedule: Schedule, choice):
    rows = [list(row) for row in schedule.stages]
    for row in rows:
        row.insert(choice.randrange(len(row)), row.pop(choice.randrange(len(row))))
    try:
        check(replace(schedule, stages=tuple(map(tuple, rows))))
    except IllegalSchedule as refused:
        said = str(refused)
    else:
        return
    if "deadlocks" in said:
        first, *others = re.findall(r"stage (\d+)(?: waits with|'s)", said)
        assert others[-1] == first
        assert len(set(others)) == len(others) > 1


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: make_schedule("fastest", 2, 2), "schedule='fastest': choose naive, gpipe, 1f1b"),
        (lambda: make_schedule("zb-v", 2, 2, virtual=3), "virtual=3: zb-v has 2 virtual stages per stage; with interl"),
        (lambda: make_schedule("gpipe", 2, 2, virtual=2), "virtual=2: gpipe has 1 virtual stage per stage; with"),
        (lambda: make_schedule("interleaved", 2, 2, virtual=0), "virtual=0: a schedule needs at least one"),
        (lambda: Layout(2, 2, "spiral"), "layout='spiral': choose loop or v"),
        (lambda: Layout(0), "stages=0, virtual=1: a schedule needs at least one of each"),
        (lambda: Schedule.of(["F0 B0"], layout="x"), "layout='x': choose"),
        (lambda: Action("F", 0, 0, -1), "virtual=-1: all of them count from 0"),
        (lambda: ActionCosts(weight_gradients=-1), "weight_gradients=-1: a cost is a time"),
    ],
)
def test_bad_input_gets_a_sentence(make, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_actions_are_written_with_what_tells_them_apart():
    for text in ("F3", "B3.2", "W3v1", "R3.2v1"):
        assert str(Action.of(text)) == text
    assert Action("F", 3).label(chunks=2, virtual=2) == "F3.0v0"
    assert str(zero_bubble_v(1, 1)) == "zb-v\nstage 0: F0v0 F0v1 B0v1 W0v1 B0v0 W0v0"
    assert str(zero_bubble_h1(2, 2)) == "zb-h1\nstage 0: F0 F1 B0 W0 B1 W1\nstage 1: F0 B0 F1 B1 W0 W1"


def test_memory_of_schedules_with_other_pieces_is_counted_in_one_unit():
    shares = [make_schedule(name, 4, 8).peak_share[0].total for name in ("gpipe", "1f1b", "looped-bfs", "zb-v")]
    assert shares == [1, 0.5, 1, 0.5]
    assert [held.total for held in gpipe(2, 1, 8).peak_share] == [1, 1]
