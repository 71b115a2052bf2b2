"""A search finds what is best on small sizes, never less than what is known, and never more than can be."""

from __future__ import annotations

import contextlib
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.pipeline.actions import Action, IllegalSchedule
from course_lib.pipeline.named_schedules import SCHEDULES, make_schedule
from course_lib.pipeline.schedule import Schedule, check
from course_lib.pipeline.search import find_schedule, lower_bound
from course_lib.pipeline.simulation import ActionCosts, simulate
from tests.pipeline.legal_schedules import legal_schedules, shares

quickly = settings(deadline=None, max_examples=20)
times = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0])
some_costs = st.builds(ActionCosts, times, times, st.sampled_from([0.0, 0.5, 1.0]), times, times)


def orders(chains: list[list[Action]]) -> list[tuple[Action, ...]]:
    """Every way to do these chains of actions on one stage."""
    if not any(chains):
        return [()]
    heads = [number for number, chain in enumerate(chains) if chain]
    rest = {number: [chain[number == other :] for other, chain in enumerate(chains)] for number in heads}
    return [(chains[number][0], *order) for number in heads for order in orders(rest[number])]


def all_schedules(kinds: str) -> list[Schedule]:
    """Every legal schedule of 2 stages and 2 micro-batches."""
    rows = orders([[Action(kind, m) for kind in kinds] for m in range(2)])
    legal = []
    for stages in product(rows, rows):
        with contextlib.suppress(IllegalSchedule):
            check(schedule := Schedule("any", stages, 2))
            legal.append(schedule)
    return legal


EVERY = {split: all_schedules("FB") + (all_schedules("FBW") if split else []) for split in (False, True)}


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(some_costs, st.sampled_from([0.5, 1.0, None]), st.booleans())
def test_on_two_stages_and_two_micro_batches_no_order_is_better(costs: ActionCosts, memory: float | None, split: bool):
    fitting = [one for one in EVERY[split] if fullest(one) <= (memory or 1.0)]
    best = min(simulate(one, costs).makespan for one in fitting)
    found = find_schedule(2, 2, costs, memory=memory, split=split, tries=4000)
    assert simulate(found, costs).makespan == pytest.approx(best)


def fullest(schedule: Schedule) -> float:
    return max(held.total for held in schedule.peak_share)


@st.composite
def questions(draw: st.DrawFn) -> dict:
    """What to search for: sizes, a layout and a limit that one micro-batch fits into."""
    virtual = draw(st.integers(1, 2))
    micro_batches = draw(st.integers(1, 5))
    return {
        "stages": draw(st.integers(1, 4)),
        "micro_batches": micro_batches,
        "costs": draw(some_costs),
        "memory": draw(st.sampled_from([None, *(count / micro_batches for count in range(1, micro_batches + 1))])),
        "virtual": virtual,
        "layout": draw(st.sampled_from(["loop", "v"])) if virtual > 1 else "loop",
        "split": draw(st.booleans()),
        "chunks": draw(st.integers(1, 2)),
    }


@quickly
@given(questions(), st.sampled_from([0, 300]))
def test_what_is_found_is_legal_fits_and_is_between_the_bound_and_the_best_that_is_known(question: dict, tries: int):
    found = find_schedule(**question, tries=tries)
    check(found)
    memory, costs = question["memory"], question["costs"]
    assert fullest(found) <= (memory or 1.0) + 1e-9
    assert question["split"] or not found.split
    makespan = simulate(found, costs).makespan
    assert makespan >= lower_bound(**{key: value for key, value in question.items() if key != "memory"}) - 1e-9
    for named in named_like(found):
        if fullest(named) <= (memory or 1.0) and (question["split"] or not named.split):
            assert makespan <= simulate(named, costs).makespan + 1e-9


def named_like(schedule: Schedule) -> list[Schedule]:
    """Those with a name, of the same sizes."""
    made = []
    for name in SCHEDULES:
        virtual = schedule.virtual if name in ("interleaved", "looped-bfs") else None
        made.append(make_schedule(name, len(schedule.stages), schedule.micro_batches, schedule.chunks, virtual))
    return [one for one in made if (one.virtual, one.layout) == (schedule.virtual, schedule.layout)]


@settings(deadline=None, max_examples=60)
@given(
    legal_schedules(chunks=st.integers(1, 2), virtual=st.integers(1, 3), split=shares),
    st.builds(ActionCosts, times, times, st.sampled_from([0.0, 0.5, 1.0])),
)
def test_no_schedule_takes_less_than_the_bound(schedule: Schedule, costs: ActionCosts):
    sizes = {"chunks": schedule.chunks, "virtual": schedule.virtual, "layout": schedule.layout}
    sizes |= {"split": bool(schedule.split)}
    bound = lower_bound(len(schedule.stages), schedule.micro_batches, costs, **sizes)
    assert simulate(schedule, costs).makespan >= bound - 1e-9


@pytest.mark.parametrize(
    ("virtual", "layout", "bound"), [(1, "loop", 3 * 8 + 3), (2, "loop", 6 * 8 + 3), (2, "v", 6 * 8 + 3)]
)
def test_the_zero_bubble_schedules_cannot_be_beaten_for_equal_costs(virtual: int, layout: str, bound: float):
    costs = ActionCosts(1, 2)
    assert lower_bound(4, 8, costs, virtual=virtual, layout=layout) == bound
    name = "zb-h1" if virtual == 1 else "zb-v"
    assert simulate(make_schedule(name, 4, 8), costs).makespan == bound


def test_the_search_beats_1f1b_where_links_are_slow_and_there_is_memory():
    costs = ActionCosts(1, 2, link=0.5)
    found = simulate(find_schedule(4, 8, costs), costs)
    assert found.makespan == lower_bound(4, 8, costs) == 28.5
    assert simulate(make_schedule("1f1b", 4, 8), costs).makespan == 41
    assert simulate(make_schedule("zb-h1", 4, 8), costs).makespan == 33


def test_memory_that_1f1b_leaves_unused_on_later_stages_buys_a_turn():
    costs = ActionCosts(1, 2, link=0.5)
    assert simulate(make_schedule("1f1b", 4, 8), costs).makespan == 41
    for seed in range(5):
        found = find_schedule(4, 8, costs, memory=0.5, split=False, seed=seed)
        assert simulate(found, costs).makespan == 40


def test_less_memory_never_makes_it_faster():
    costs, found = ActionCosts(1, 2, link=0.5), []
    for memory in (1.0, 0.5, 0.25, 0.125):
        found.append(simulate(find_schedule(3, 8, costs, memory=memory, tries=2000), costs).makespan)
    assert found == sorted(found)
    assert found[-1] > found[0]


def test_the_same_seed_finds_the_same_schedule_and_another_one_another():
    costs = ActionCosts((1, 2, 1.3), 2.1, link=0.7)
    found = [find_schedule(3, 6, costs, memory=0.5, virtual=2, tries=800, seed=seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_too_little_memory_for_one_micro_batch_is_refused_with_what_is_needed():
    with pytest.raises(ValueError, match=r"memory=0.1 of the batch is less than one of 4 micro-batches: give at"):
        find_schedule(2, 4, ActionCosts(), memory=0.1)
