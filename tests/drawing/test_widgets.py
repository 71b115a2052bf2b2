"""Widgets, without a browser: what a choice changes, what is said about it, and what a notebook keeps of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from course_lib.data_parallel.scaling_widget import explore_scaling
from course_lib.drawing import explorer
from course_lib.messages.all_reduce_widget import TYPESET, explore_all_reduce
from course_lib.model_parallel.placement import BlockCost, balanced
from course_lib.model_parallel.placement_widget import explore_placement, rising
from course_lib.one_device.memory_widget import explore_memory
from course_lib.padding.batches_widget import explore_batches
from course_lib.pipeline.bench_widget import schedule_bench
from course_lib.pipeline.named_schedules import one_f_one_b
from course_lib.pipeline.schedule import Schedule
from course_lib.pipeline.schedule_picture import explore_schedules
from course_lib.sharding.meshes_widget import explore_meshes

FILES = Path(explorer.__file__).parent
COSTS = [BlockCost(0.0, 8), *[BlockCost(1.0, 2)] * 8, BlockCost(0.5, 8)]
MAKE = {
    "all-reduce": explore_all_reduce,
    "batches": lambda: explore_batches(list(range(1, 200)), ranks=2),
    "bench": schedule_bench,
    "memory": explore_memory,
    "meshes": explore_meshes,
    "placement": lambda: explore_placement(COSTS, 4),
    "scaling": explore_scaling,
    "schedules": explore_schedules,
}


@pytest.fixture(params=MAKE, ids=list(MAKE))
def explorer(request):
    return MAKE[request.param]()


def test_a_stored_picture_is_an_image_with_a_text_alternative(explorer):
    kept = explorer.still()
    words = explorer.showcase().alt
    assert kept["text/plain"] == f"{explorer.title}. {words}"
    root = ElementTree.fromstring(kept["image/svg+xml"])
    assert root.get("role") == "img"
    assert root.get("aria-label") == words
    assert re.search(r'<img alt="[^"]{20,}"', kept["text/html"])
    assert "application/vnd.jupyter.widget-view+json" not in kept


def test_every_shape_has_a_color_in_the_light_and_in_the_dark(explorer):
    from course_lib.drawing.svg import LIGHT, colors

    used = {name for names in re.findall(r'class="([^"]+)"', explorer.drawing.shapes) for name in names.split()}
    known = set(re.findall(r"\.([\w-]+)", colors(LIGHT)))
    assert used - known <= {"travelling"}


@pytest.mark.slow
def test_every_option_of_every_control_can_be_drawn(explorer):
    for name in list(explorer.controls):
        options = explorer.controls[name].options
        for option in {options[0], options[len(options) // 2], options[-1]}:
            if option in explorer.controls[name].options:
                explorer.set(**{name: option})
                ElementTree.fromstring(explorer.drawing.alone)
                assert "nan" not in explorer.drawing.shapes
                assert len(explorer.drawing.alt) > 20


def test_a_choice_that_is_not_offered_is_answered_with_those_that_are(explorer):
    name = next(iter(explorer.controls))
    with pytest.raises(ValueError, match=f"{name}='nonsense' is not offered: choose among"):
        explorer.set(**{name: "nonsense"})
    with pytest.raises(ValueError, match="there is no control 'nonsense'"):
        explorer.set(nonsense=1)
    with pytest.raises(ValueError, match="there is no button 'nonsense'"):
        explorer.press("nonsense")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: explore_all_reduce(1), "ranks=1: give a whole number from 2 to 8"),
        (lambda: explore_all_reduce("many"), "ranks='many'"),
        (lambda: explore_batches([]), "lengths is empty"),
        (lambda: explore_batches([1, 2], ranks=0), "ranks=0: give a whole number"),
        (lambda: explore_placement(COSTS, 11), "10 blocks can be cut into 2 to 10 stages"),
        (lambda: schedule_bench(stages=0), "stages=0: give a whole number from 1 to 6"),
        (lambda: schedule_bench(start="best"), "start='best': begin with naive, gpipe"),
        (lambda: schedule_bench().move("0:F9", 0), "'0:F9' is not in this schedule"),
        (lambda: schedule_bench().move("7:F0", 0), "'7:F0' is not in this schedule"),
        (lambda: schedule_bench().move("0:F0", 99), "place=99: give a whole number from 0 to 7"),
    ],
)
def test_bad_input_is_answered_in_a_sentence(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.slow
def test_pictures_can_be_imported_and_stored_without_jupyter():
    code = (
        "import sys\n"
        "for name in ('IPython', 'ipywidgets', 'anywidget', 'traitlets'): sys.modules[name] = None\n"
        "from course_lib.messages import explore_all_reduce\n"
        "widget = explore_all_reduce()\n"
        "assert widget.live() is None\n"
        "print(len(widget.still()))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "3\n"


# The page: what travels to it and comes back.


def live(explorer):
    pytest.importorskip("anywidget")
    return explorer.live()


def test_what_is_chosen_in_the_page_is_drawn_in_the_page(explorer):
    view = live(explorer)
    before = view.picture
    name = {"The schedule bench": "stages", "All-reduce, round by round": "round"}.get(explorer.title)
    name = name or next(iter(explorer.controls))
    place = (view.places[name] + 1) % len(explorer.controls[name].options)
    view.places = {**view.places, name: place}
    assert explorer.values[name] == explorer.controls[name].options[place]
    assert view.picture == explorer.drawing.in_page != before
    assert view.said == explorer.drawing.alt
    for control in view.controls:
        assert control["label"]
        assert len(control["words"]) == len(explorer.controls[control["name"]].options)


def test_a_widget_shows_its_still_picture_as_an_output_of_its_own(monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(display, "display", lambda what, **_: shown.append(what))
    explorer = explore_scaling()
    explorer._ipython_display_()
    assert shown == [explorer.still(), explorer.live()]


# The ring.


def test_a_ring_is_stepped_to_the_end_where_every_piece_is_complete():
    explorer = explore_all_reduce(4)
    assert explorer.drawing.alt.startswith("Before the first of 6 rounds")
    explorer.set(round=3)
    assert "Round 3 of 6, reduce-scatter: every rank sends one piece" in explorer.drawing.alt
    assert "Complete: 4 of 16 pieces" in explorer.drawing.alt
    explorer.set(round=6)
    assert "Round 6 of 6, all-gather" in explorer.drawing.alt
    assert "Complete: 16 of 16 pieces" in explorer.drawing.alt
    formula = "2(n-1)/n x M".translate(TYPESET)
    assert f"sent 6 MB. One after another, 6 MB of {formula} = 6 MB" in explorer.drawing.alt
    assert explorer.drawing.shapes.count('class="whole"') == 16


def test_another_way_begins_again_and_has_its_own_rounds():
    explorer = explore_all_reduce(6)
    explorer.set(round=4)
    explorer.set(way="naive")
    assert explorer.values["round"] == 0
    assert explorer.controls["round"].options == tuple(range(11))
    explorer.set(way="recursive doubling")
    assert explorer.values["ranks"] == 4  # pairs need a power of two


@pytest.mark.parametrize("ranks", range(2, 9))
def test_no_label_of_a_message_lies_behind_a_ranks_box(ranks):
    explorer = explore_all_reduce(ranks)
    for done in (1, ranks):
        explorer.set(round=done)
        shapes = explorer.drawing.shapes
        labels = [tuple(map(float, place)) for place in re.findall(LABEL, shapes)]
        boxes = [list(map(float, place)) for place in re.findall(RANK_BOX, shapes)]
        assert (len(labels), len(boxes)) == (ranks, ranks)
        for x, y in labels:
            for left, top, width, height in boxes:
                assert not (left < x + 24 and x - 24 < left + width and top < y and y - 10 < top + height)


LABEL = r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>piece \d'
RANK_BOX = r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" class="paper"'

# The bench.


def test_the_bench_counts_as_held_only_what_has_begun():
    bench = schedule_bench(2, 2, start="gpipe")
    bench.move("0:F0", 3)  # stage 0 does F1, and is stuck; stage 1, which wants F0, does nothing
    held = bench.drawing.shapes.partition("held of the batch")[2]
    assert re.findall(r">(\d+)%</text>", held)[:2] == ["50", "0"]


def test_the_bench_names_the_deadlock_and_who_waits_for_whom():
    bench = schedule_bench(2, 2, start="gpipe")
    bench.move("0:B0", 1)  # before F1, which stage 1 needs before its B0
    assert bench.drawing.alt.startswith("Stage 0 now does B0 as number 2 of 4.")
    assert "Stuck: this order deadlocks: stage 0 waits with B0 for stage 1's B0" in bench.drawing.alt
    assert "Who waits: stage 0 with B0 for stage 1's B0; stage 1 with F1 for stage 0's F1." in bench.drawing.alt
    assert "never starts" in bench.drawing.shapes
    assert "never ends" in bench.drawing.below


def test_a_backward_before_its_own_forward_is_named_too():
    bench = schedule_bench(1, 1)
    bench.move("0:B0", 0)
    assert "stage 0 does B0 before F0: a backward needs what its forward saved" in bench.drawing.alt
    assert "stage 0 with B0 for its own F0" in bench.drawing.alt


def test_a_schedule_built_by_hand_is_scored_and_run_on_real_ranks():
    bench = schedule_bench(2, 4, start="gpipe")
    assert "as fast with less memory: 1f1b" in bench.drawing.alt
    wanted = one_f_one_b(2, 4)
    for stage, row in enumerate(wanted.stages):
        for place, action in enumerate(row):
            bench.move(f"{stage}:{action.label()}", place)
    assert bench.schedule.stages == wanted.stages
    assert "as fast with less memory: interleaved, looped-bfs, zb-h1, zb-v." in bench.drawing.alt
    assert bench.drawing.below.count("<tr>") == 1 + 1 + 7 + 1  # a head, yours, those with a name, and the bound
    assert ">bound, with any memory</th><td>10</td>" in bench.drawing.below
    bench.press("run")
    assert [one.action for one in bench.ran if one.stage == 1] == list(bench.schedule.stages[1])
    assert all(one.paced for one in bench.ran)
    assert "measured on real ranks" in bench.drawing.shapes
    assert "Measured: " in bench.drawing.alt
    bench.move("0:B1", 0)
    assert not bench.ran


def test_undo_goes_back_move_by_move_and_then_says_so():
    bench = schedule_bench(2, 2, start="gpipe")
    first = bench.schedule
    bench.move("1:B0", 0)
    bench.move("0:B1", 0)
    bench.press("undo")
    bench.press("undo")
    assert bench.schedule == first
    bench.press("undo")
    assert bench.drawing.alt.startswith("Nothing to undo.")


def test_other_sizes_begin_again_and_other_costs_keep_what_was_built():
    bench = schedule_bench(2, 3)
    bench.move("1:B2", 0)
    built = bench.schedule
    bench.set(backward=2)
    assert bench.schedule == built
    bench.set(micro_batches=2)
    assert bench.schedule.name == "naive"


def test_every_action_of_the_bench_has_a_name_a_place_and_a_row():
    shapes = schedule_bench(2, 2, start="gpipe").drawing.shapes
    found = re.findall(r'data-item="([^"]+)" data-row="(\d)" data-place="(\d)".*?aria-label="([^"]+)"', shapes)
    assert [item for item, *_ in found][:4] == ["0:F0", "0:F1", "0:B0", "0:B1"]
    assert found[2][3] == "stage 0, number 3: backward B0, from 4 to 5"


def test_the_bench_does_not_run_what_would_hang():
    bench = schedule_bench(2, 2, start="gpipe")
    bench.move("0:B0", 1)
    bench.press("run")
    assert bench.drawing.alt.startswith("Not run: it would hang. Stuck")


@pytest.mark.parametrize("start", ["1f1b", "zb-v", "wavefront"])
def test_the_text_below_the_bench_is_its_schedule(start):
    bench = schedule_bench(3, 4, chunks=2 if start == "wavefront" else 1, start=start)
    (text,) = re.findall("<pre>(.*?)</pre>", bench.drawing.below, re.DOTALL)
    lines = re.sub("<.*?>", "", text).split("\n")
    assert Schedule.of(lines, layout=bench.schedule.layout).stages == bench.schedule.stages
    assert set(re.findall('data-of="(.*?)"', text)) == set(re.findall('data-item="(.*?)"', bench.drawing.shapes))


def test_four_moves_are_enough_and_the_bench_counts_them():
    """As lesson 06 says."""
    bench = schedule_bench(3, 4, start="gpipe")
    assert "Goal: makespan 12, as in GPipe; no stage holds over 75%, as in 1F1B. So far: 0 moves." in bench.drawing.alt
    for item, place in (("0:B0", 3), ("1:B0", 3), ("2:B0", 1), ("2:F3", 6)):
        bench.move(item, place)
    assert "✓ Goal reached in 4 moves: GPipe's time in 1F1B's memory." in bench.drawing.alt
    bench.press("undo")
    assert "So far: 3 moves." in bench.drawing.alt
    bench.press("again")
    assert "So far: 0 moves." in bench.drawing.alt
    assert "Goal" not in schedule_bench(3, 3, start="gpipe").drawing.alt


def test_virtual_stages_and_weight_gradients_can_be_moved_too():
    bench = schedule_bench(2, 2, start="zb-v")
    bench.move("1:W0v1", 3)
    assert "does W0v1 before B0v1" in bench.drawing.alt
    assert 'aria-label="stage 1, number 4: weight gradients W0v1, never starts"' in bench.drawing.shapes


def test_a_later_virtual_stage_is_darker_and_each_action_names_its_place_in_the_text():
    explorer = explore_schedules()
    assert "shade" not in explorer.drawing.shapes
    explorer.set(schedule="interleaved", micro_batches=4)
    drawing = explorer.drawing
    assert 'class="forward shade1"' in drawing.shapes
    assert "darker boxes: a later virtual stage" in drawing.shapes
    actions = re.findall(r'data-of="([^"]+)"', drawing.below)
    assert sorted(actions) == sorted(re.findall(r'data-of="([^"]+)"', drawing.tips))
    assert len(set(actions)) == len(actions) == 4 * 4 * 2 * 2


# Scaling, meshes, memory, and the others.


def test_the_curve_is_the_cost_model_of_the_network():
    explorer = explore_scaling()
    explorer.set(compute=0.1, size=1e6, latency=1e-4, bandwidth=1e9)
    rounds = 2 * 7 * (1e-4 + 1e6 / 8 / 1e9)
    assert explorer.at(8) == pytest.approx(0.1 / (0.1 / 8 + rounds))
    explorer.set(kind="weak")
    assert explorer.at(8) == pytest.approx(8 * 0.1 / (0.1 + rounds))


@pytest.mark.slow
def test_this_machines_own_points_are_measured_and_drawn():
    explorer = explore_scaling()
    explorer.set(compute=0.05, size=1e5)
    explorer.press("measure")
    assert set(explorer.measured) == {2, 4}
    assert explorer.drawing.shapes.count("<circle") == 2
    assert "This machine, paced:" in explorer.drawing.alt
    explorer.set(size=2e5)
    assert not explorer.measured


def test_work_that_is_too_large_for_this_machine_is_not_measured():
    explorer = explore_scaling()
    explorer.set(size=1e10)
    explorer.press("measure")
    assert explorer.drawing.alt.startswith("Not measured: choose at most 500 ms of computation and 100 MB")


def test_the_winning_mesh_is_the_planners_and_each_other_has_a_reason():
    explorer = explore_meshes()
    first, *others = explorer.candidates()
    assert first.reason == ""
    assert f"{first.name} wins" in explorer.drawing.alt
    assert all(one.reason for one in others)
    names = {one.name for one in (first, *others)}
    assert {"16 x 1", "1 x 16", "4 x 4, stages inside", "4 x 4, replicas inside", "1 x 16 sharded"} <= names
    for one in (first, *others):
        assert one.plan is None or sum(one.parts.values()) == pytest.approx(one.plan.seconds)


def test_the_optimizer_that_is_chosen_decides_what_a_mesh_needs():
    explorer, needs = explore_meshes(), {}
    for optimizer in ("SGD", "Adam"):
        explorer.set(optimizer=optimizer)
        needs[optimizer] = {one.name: one.plan.bytes for one in explorer.candidates() if one.plan}
    assert all(needs["SGD"][name] < needs["Adam"][name] for name in needs["SGD"])


def test_less_memory_rules_meshes_out_and_says_so():
    explorer = explore_meshes()
    explorer.set(hidden=8192, memory=192)
    roomy = {one.name for one in explorer.candidates() if "does not fit" not in one.reason}
    explorer.set(memory=24)
    tight = {one.name for one in explorer.candidates() if "does not fit" not in one.reason}
    assert tight < roomy
    explorer.set(hidden=16384, layers=30, memory=16, devices=1)
    assert explorer.drawing.alt.startswith("No mesh of 1 device will do. 1 x 1: does not fit")


def test_the_memory_explorer_says_what_the_last_change_has_changed():
    explorer = explore_memory()
    explorer.set(optimizer="SGD")
    assert re.search(r"The last change: optimizer -[\d.]+ MiB\.$", explorer.drawing.alt)
    explorer.set(device=24)  # changes nothing that is stored
    assert "The last change: optimizer -" in explorer.drawing.alt
    explorer.set(steps=2048, sequences=1024)
    assert "Too much: " in explorer.drawing.alt


@pytest.mark.parametrize(
    ("cuts", "moved"), [([3, 5, 7], [3, 5, 7]), ([5, 5, 2], [5, 6, 7]), ([9, 9, 9], [7, 8, 9]), ([1, 1, 1], [1, 2, 3])]
)
def test_cuts_move_on_until_every_stage_has_a_block(cuts, moved):
    assert rising(cuts, 10) == moved


def test_nobody_beats_the_solver_and_the_widget_says_by_how_much():
    explorer = explore_placement(COSTS, 4)
    assert explorer.drawing.alt.startswith("Your slowest stage takes ")
    assert "solver" not in explorer.drawing.shapes + explorer.drawing.alt
    assert explorer.showcase().alt.startswith("Your slowest stage takes 1.20 times the solver's")
    best = [part[0] for part in balanced(COSTS, 4).parts[1:]]
    explorer.set(**{f"cut_{stage}": cut for stage, cut in enumerate(best, start=1)})
    explorer.press("compare")
    assert "the solver&#x27;s: 3 hops" in explorer.drawing.shapes
    assert explorer.drawing.alt.startswith("Your slowest stage takes 1.00 times the solver's, your largest has 1.00")


def test_the_schedule_explorer_draws_the_same_batch_for_every_choice():
    explorer = explore_schedules()
    explorer.set(schedule="gpipe", micro_batches=8)
    assert explorer.drawing.alt.startswith("Schedule gpipe on 4 stages: makespan 4.125, bubble 27.3%")
    explorer.set(schedule="naive")
    assert "bubble 75.0%" in explorer.drawing.alt


def test_a_block_of_the_schedule_explorer_says_what_it_is_and_what_is_stored_stays_small():
    explorer = explore_schedules()
    titles = re.findall(r"<title>(.*?)</title>", explorer.drawing.in_page)
    assert len(titles) == 4 * 4 * 2
    assert "stage 0: forward F0, from 0 to 0.25" in titles
    assert "<title>" not in explorer.drawing.alone
    explorer.set(stages=8, micro_batches=16, chunks=8)
    assert "<title>" not in explorer.drawing.in_page  # 2,048 boxes are too narrow to point at


# The page's own files.


def test_the_page_asks_the_network_for_nothing():
    for name in ("shell.js", "shell.css"):
        source = (FILES / name).read_text()
        assert not re.search(r"https?:|@import|import\(|fetch\(|url\(", source), name
