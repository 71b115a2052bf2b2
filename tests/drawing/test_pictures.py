"""Pictures show what was recorded, and say it in words."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from course_lib.clusters.links_picture import draw_link_matrix
from course_lib.core.adding import AddingProblem, at_last_padded_step
from course_lib.core.batch import pad
from course_lib.core.memory import BatchSize, Memory
from course_lib.core.model import lstm_model
from course_lib.drawing.curves import draw_curves
from course_lib.drawing.picture import COLORS, LETTERS, Picture, colors_for
from course_lib.drawing.timeline import draw_comparison, draw_messages, draw_timeline, matched
from course_lib.launcher.notebook.run import Run
from course_lib.messages.link import Link
from course_lib.model_parallel.placement import BlockCost, balanced, round_robin
from course_lib.model_parallel.placement_widget import draw_placement
from course_lib.model_parallel.work import Work
from course_lib.one_device.memory_widget import draw_memory
from course_lib.padding.padding_picture import draw_padding
from course_lib.pipeline.actions import Action
from course_lib.pipeline.named_schedules import gpipe, make_schedule, naive, one_f_one_b, wavefront
from course_lib.pipeline.schedule_picture import LEFT, ROW, TOP, WIDTH, draw_schedule
from course_lib.pipeline.simulation import TimedAction, simulate
from course_lib.runtime.trace import Span
from course_lib.sharding.choose_plan import best_of_each_way, explain, plans
from course_lib.sharding.network import Network
from course_lib.sharding.plans_picture import draw_plans
from tests.one_device.tables import even_times


def bars(picture) -> list[tuple[float, float, float]]:
    """(left, right, row) of every bar drawn, in milliseconds."""
    (axes,) = picture.figure.axes
    boxes = [path.get_extents() for bar in axes.collections for path in bar.get_paths()]
    return sorted((round(box.x0, 3), round(box.x1, 3), round((box.y0 + box.y1) / 2)) for box in boxes)


def test_a_trace_file_is_drawn_like_the_run_it_was_written_from(tmp_path):
    spans = [Span(0, "input wait", 0.0, 0.010), Span(1, "forward", 0.010, 0.020)]
    run = Run((None, None), 1.0, spans=spans)
    picture = draw_timeline(run.trace(tmp_path / "run.json"))
    assert bars(picture) == bars(draw_timeline(run)) == [(0, 10, 0), (10, 20, 1)]
    assert picture.alt == "Timeline of 2 ranks: input wait, forward"


def test_the_worst_link_is_named_in_words_and_every_link_has_its_number():
    links = {(a, b): Link(1e-5, 1e9) for a, b in ((0, 1), (0, 2), (1, 2))} | {(0, 2): Link(5e-4, 2e8)}
    picture = draw_link_matrix(links, 3)
    assert "Latency from 10 to 500 microseconds, the longest between ranks 0 and 2." in picture.alt
    assert "Bandwidth from 0.2 to 1 GB/s, the lowest between ranks 0 and 2" in picture.alt
    for axes, numbers in zip(picture.figure.axes, (["10", "500"], ["1", "0.2"]), strict=True):
        usual, worst = numbers
        shown = {text.get_position(): text.get_text() for text in axes.texts}
        assert shown == {(a, b): worst if {a, b} == {0, 2} else usual for a in range(3) for b in range(3) if a != b}
    assert draw_link_matrix({}, 1).alt == "One rank, and so no links"


@pytest.mark.parametrize("end", [5.09, 5.11])
def test_a_message_is_drawn_below_what_its_rank_does_meanwhile_whichever_takes_longer(end):
    picture = draw_timeline([Span(0, "communication", 5.0, end), Span(0, "wait for the sums", 5.0, 5.1)], ranks=1)
    colors = {COLORS["communication"]: 0.38, colors_for(["wait for the sums"])["wait for the sums"]: 0.76}
    drawn = {to_hex(bar.get_facecolor()[0]): bar.get_paths()[0] for bar in picture.figure.axes[0].collections}
    heights = {color.upper(): path.get_extents().height for color, path in drawn.items()}
    assert heights == pytest.approx({color.upper(): height for color, height in colors.items()})


def test_a_timeline_says_whether_it_is_paced_and_without_spans_how_to_record_some():
    picture = draw_timeline([Span(0, "forward", 0.0, 0.01, paced=True)], ranks=1)
    assert "paced" in picture.figure.axes[0].get_xlabel()
    assert picture.alt == "Paced timeline of 1 rank: forward"
    assert "trace.span" in draw_timeline([], ranks=2).alt
    assert "give a Simulation" in draw_schedule([]).alt


def test_a_notebook_gets_an_image_with_alt_text_whose_width_follows_the_letters():
    data = draw_timeline([Span(0, "forward", 0.0, 0.01)], ranks=1)._repr_mimebundle_()
    assert data["text/plain"] == "Timeline of 1 rank: forward"
    assert '<img alt="Timeline of 1 rank: forward" ' in data["text/html"]
    assert "width:49.5em;max-width:100%" in data["text/html"]
    assert f'src="data:image/png;base64,{data["image/png"]}"' in data["text/html"]
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")


def test_fewer_shades_leave_the_colors_as_they_are():
    drawn = Image.open(io.BytesIO(draw_timeline([Span(0, "forward", 0.0, 0.01)], ranks=1).png)).convert("RGB")
    shades = {f"#{red:02X}{green:02X}{blue:02X}" for _, (red, green, blue) in drawn.getcolors(256)}
    assert {"#FFFFFF", COLORS["forward"]} <= shades


def test_no_letter_is_smaller_than_twelve_points():
    shown = [draw_curves({"loss": [(1, 2.0), (2, 1.0)]}, x="update", y="loss"), draw_link_matrix({}, 1)]
    for picture in shown:
        letters = [words for words in picture.figure.findobj(Text) if words.get_text()]
        assert min(words.get_fontsize() for words in letters) >= LETTERS


def test_words_beside_a_picture_cannot_leave_their_attribute():
    shown = Picture(Figure(), 'a "<b>" of two')._repr_mimebundle_()["text/html"]
    assert 'alt="a &quot;&lt;b&gt;&quot; of two"' in shown


def test_a_message_pairs_the_nth_send_with_the_nth_receive_and_leaves_when_both_are_there():
    spans = [
        Span(0, "send", 0.00, 0.02, peer=1),
        Span(0, "send", 0.02, 0.05, peer=1),
        Span(0, "send", 0.03, 0.04, peer=2),
        Span(1, "receive", 0.01, 0.02, peer=0),
        Span(1, "receive", 0.02, 0.05, peer=0),
        Span(1, "forward", 0.05, 0.06),
    ]
    assert [(send.start, receive.end) for send, receive in matched(spans)] == [(0.01, 0.02), (0.02, 0.05)]
    assert draw_messages(spans, ranks=3).alt == "Messages between 3 ranks: 2, over the links 0 to 1"


def test_two_runs_are_drawn_on_one_time_axis_each_from_its_first_message():
    def one_message(at: float) -> Run:
        spans = [Span(0, "send", at, at + 0.01, peer=1), Span(1, "receive", at, at + 0.01, peer=0)]
        return Run((None, None), 0.1, spans=spans)

    picture = draw_messages({"slow": one_message(0.5), "quick": one_message(0.1)})
    assert [axes.get_xlim() for axes in picture.figure.axes] == [pytest.approx((0, 10.2))] * 2
    assert picture.alt.startswith("slow: Messages between 2 ranks: 1, over the links 0 to 1; quick: Messages")


def boxes(drawing) -> dict[str, list[tuple[int, float, float]]]:
    """By class: (row, left, right) of every box of a schedule, as shares of the time axis."""
    found = {}
    for commands, name in re.findall(r'<path d="([^"]+)" class="([^"]+)"', drawing.shapes):
        places = [tuple(map(float, place)) for place in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v", commands)]
        found[name] = [
            ((y - TOP) // ROW, round((x - LEFT) / WIDTH, 2), round((x - LEFT + w) / WIDTH, 2)) for x, y, w in places
        ]
    return found


def words(drawing, pattern=r"[^<]*") -> list[str]:
    return re.findall(rf">({pattern})</text>", drawing.shapes)


def numbers(drawing) -> list[str]:
    """What is written into the boxes."""
    return re.findall(r'class="on-(?:dark|light)" text-anchor="middle">([^<]*)<', drawing.shapes)


def test_a_schedule_has_one_box_per_action_on_its_stages_row():
    picture = draw_schedule(simulate(naive(2)))
    forward, backward = [(0, 0, 0.25), (1, 0.25, 0.5)], [(1, 0.5, 0.75), (0, 0.75, 1)]
    assert boxes(picture) == {"forward": forward, "backward": backward}
    assert numbers(picture) == ["0", "0", "0", "0"]
    assert words(picture, r"[\d.]+%") == ["100%", "100%"]


def test_a_schedule_says_its_makespan_bubble_and_what_it_holds():
    picture = draw_schedule(simulate(one_f_one_b(4, 8)))
    assert "1f1b: makespan 22, bubble 27.3%" in words(picture)
    assert words(picture, r"[\d.]+%") == ["50%", "37.5%", "25%", "12.5%"]
    assert picture.alt == (
        "Schedule 1f1b on 4 stages: makespan 22, bubble 27.3%; held at most, of the batch: 50%, 37.5%, 25%, 12.5%"
    )
    assert draw_schedule(gpipe(4, 8)).alt.endswith("100%, 100%, 100%, 100%")


def test_units_and_words_may_be_others_and_the_bars_be_left_out():
    """As lesson 10 draws chunks."""
    timed = [
        TimedAction(stage, Action("F", chunk), stage + chunk, stage + chunk + 1) for stage in (0, 1) for chunk in (0, 1)
    ]
    picture = draw_schedule(timed, seconds=False, unit="ticks", idle="no chunk", held=False)
    assert "time in ticks" in words(picture)
    assert picture.alt == "Schedule on 2 stages: makespan 3 ticks, bubble 33.3%"
    assert words(picture)[:2] == ["forward", "no chunk"]
    assert "held of the batch" not in words(picture)


def test_chunks_are_named_where_there_is_room():
    picture = draw_schedule(simulate(wavefront(3, 2, 4)))
    assert numbers(picture)[:2] == ["0.0", "0.1"]
    assert words(picture, r"[\d.]+%") == ["75%", "62.5%", "50%"]
    assert numbers(draw_schedule(simulate(wavefront(3, 8, 16)))) == []


def test_split_and_repeated_work_and_virtual_stages_are_told_apart():
    picture = draw_schedule(make_schedule("zb-v", 2, 3, recompute=True))
    for name in ("forward", "backward", "weight-gradients", "recompute"):
        assert [len(boxes(picture)[name + shade]) for shade in ("", " shade1")] == [6, 6]
    assert any("darker boxes: a later virtual stage" in said for said in words(picture))
    assert words(picture)[:5] == ["forward", "backward (inputs)", "weight gradients", "recompute", "idle"]
    assert picture.alt.startswith("Schedule zb-v + recomputation on 2 devices with 2 virtual stages each: makespan")
    assert words(picture, r"[\d.]+%") == ["16.7%", "50%"]  # stage 1: two wait for W while a third is made again


def test_a_measured_schedule_looks_like_a_simulated_one():
    simulation = simulate(one_f_one_b(2, 3))
    run = [replace(one, start=5 + one.start / 100, end=5 + one.end / 100, paced=True) for one in simulation.timed]
    picture, simulated = draw_schedule(run, name="1f1b"), draw_schedule(simulation)
    assert boxes(picture) == boxes(simulated)
    assert numbers(picture) == numbers(simulated)
    assert "time in milliseconds (paced: actions sleep to a fixed length)" in words(picture)
    assert picture.alt.startswith("Paced schedule 1f1b on 2 stages: makespan 80 milliseconds, bubble 25.0%")


def test_a_drawing_is_shown_as_an_image_and_saved_as_svg(tmp_path):
    picture = draw_schedule(simulate(naive(2)))
    data = picture._repr_mimebundle_()
    assert data["text/plain"] == picture.alt == repr(picture)
    assert data["text/html"].startswith(f'<img alt="{picture.alt}" width="648" ')
    picture.save(tmp_path / "naive.svg")
    assert ElementTree.parse(tmp_path / "naive.svg").getroot().get("aria-label") == picture.alt


def test_placements_show_each_block_on_its_stage_with_its_time_and_memory():
    costs = [BlockCost(0.0, 2**20), BlockCost(0.002, 2**21), BlockCost(0.004, 2**20), BlockCost(0.001, 3 * 2**20)]
    picture = draw_placement({"in turn": round_robin(4, 2), "balanced": balanced(costs, 2)}, costs)
    box = r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="24" class="([\w-]+)"'
    drawn = [(float(y), kind, float(x), float(width)) for x, y, width, kind in re.findall(box, picture.shapes)]
    # The bars of time are drawn first, and those of memory stand to the right of them.
    stage_0, stage_1 = ([block for y, *block in drawn if y == top and block[1] < 400] for top in (28, 58))
    second = 320 / 0.005  # the slowest stage of both placements takes 5 ms
    assert stage_0 == [["way-in", 66, 0], ["layer", 66, 0.004 * second - 1]]
    assert stage_1 == [["layer", 66, 0.002 * second - 1], ["way-out", 66 + 0.002 * second, 0.001 * second - 1]]
    assert numbers(picture)[:3] == ["2", "1", "head"]
    assert picture.alt == (
        "Placements: in turn: 3 hops, slowest stage 4 ms, largest 5 MiB; "
        "balanced: 1 hop, slowest stage 5 ms, largest 4 MiB"
    )


def test_memory_is_one_bar_for_each_name_and_a_line_marks_the_budget():
    bars = {"whole": Memory(2**20, 2**20, 2**21, 0), "half": Memory(2**19, 2**19, 2**20, 0)}
    picture = draw_memory(bars, budget=3 * 2**20)
    assert picture.alt == (
        "Memory bars: whole (most is optimizer), half (most is optimizer); above the budget of 3 MiB: whole"
    )
    assert words(picture)[:3] == ["parameters", "gradients", "optimizer"]  # no activations
    assert words(picture)[-2:] == ["2 MiB", "budget"]


def test_padding_is_drawn_as_a_share_of_the_cells():
    batch = AddingProblem(6, (4, 12)).batch(range(6))
    batch = pad([torch.zeros(4, 1), torch.zeros(12, 1)], [torch.zeros(4), torch.zeros(12)])
    picture = draw_padding({"one": [batch], "two": [batch, batch]})
    assert "one 33%, two 33% of the cells" in picture.alt
    assert len(picture.png) > 1000


def test_dots_mark_the_steps_that_are_read_and_the_words_count_those_at_an_end():
    batch = AddingProblem(6, (4, 12)).batch(range(6))
    longest = int((batch.lengths == batch.steps).sum())
    picture = draw_padding({"the last column": [at_last_padded_step(batch)], "the last step": [batch]})
    assert picture.alt.endswith(f"the last column {longest} of 6, the last step 6 of 6")
    assert [axes.get_title(loc="left") for axes in picture.figure.axes] == ["the last column", "the last step"]


def test_a_computed_curve_is_dashed_and_has_the_color_of_the_curve_it_computes():
    points = {name: [(1, 1), (2, 3)] for name in ("few", "many", "few, formula", "many, measured again")}
    lines = draw_curves(points, x="ranks", y="speed", computed=["few, formula"]).figure.axes[0].lines
    assert [(line.get_linestyle(), line.get_marker()) for line in lines[1:3]] == [("-", "o"), ("--", "None")]
    few, many, formula, again = (line.get_color() for line in lines)
    assert formula == few
    assert len({few, many, again}) == 3
    with pytest.raises(ValueError, match="name curves of this picture, few, many"):
        draw_curves(points, x="ranks", y="speed", computed=["fit"])


def test_both_axes_can_be_logarithmic_and_a_place_be_marked():
    picture = draw_curves({"steps": [(1, 10), (64, 500)]}, x="n", y="µs", logarithmic="both", verticals={"the knee": 8})
    (axes,) = picture.figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(axes.lines[1].get_xdata()) == [8, 8]
    assert picture.alt == "µs against n: steps, the knee"


def test_a_backward_pass_that_waits_for_its_messages_is_idle():
    layer, whole = Span(0, "backward", 0.0, 0.02, label="1"), Span(0, "backward", 0.0, 0.05)
    sent = Span(0, "communication", 0.01, 0.05, label="1")
    for spans, shown in (([layer, whole, sent], ["backward", "communication", "idle"]), ([layer, whole], ["backward"])):
        picture = draw_comparison({"run": Run((None,), 1.0, [], spans)})
        assert [text.get_text() for text in picture.figure.legends[0].get_texts()] == shown


def test_runs_side_by_side_begin_at_the_same_zero_with_communication_below():
    early = [Span(0, "backward", 5.0, 5.04, True, label="2"), Span(0, "communication", 5.02, 5.05, label="2")]
    late = [Span(0, "backward", 9.0, 9.01), Span(1, "backward", 0.0, 99.0)]
    runs = {name: Run((None, None), 1.0, [], spans) for name, spans in (("apart", early), ("alone", late))}
    picture = draw_comparison(runs)
    (axes,) = picture.figure.axes
    boxes = [path.get_extents() for bar in axes.collections for path in bar.get_paths()]
    corners = sorted((round(box.x0), round(box.x1), round(box.y0, 1), round(box.y1, 1)) for box in boxes)
    assert corners == [(0, 10, 0.6, 1.0), (0, 40, -0.4, 0.0), (20, 50, 0.0, 0.4)]
    assert [text.get_text() for text in axes.texts] == ["2", "2"]
    words = "Paced timelines of rank 0 on one axis: apart 50 milliseconds, alone 10 milliseconds"
    assert picture.alt == words


def test_runs_side_by_side_without_communication_fill_their_rows():
    (axes,) = draw_comparison({"run": Run((None,), 1.0, [], [Span(0, "save", 5.0, 5.04)])}).figure.axes
    (box,) = [path.get_extents() for bar in axes.collections for path in bar.get_paths()]
    assert (box.y0, box.y1) == pytest.approx((-0.4, 0.4))


def test_a_plans_bar_is_as_long_as_the_update_and_the_words_say_where_it_goes():
    work = Work.of(lstm_model(features=2, hidden=16, layers=4, outputs=1), BatchSize(16, 32), even_times(0.3, 512))
    made = best_of_each_way(plans(work, 4, Network.flat(Link(1e-3, 1e5)), micro_batches=(1, 4)))
    picture = draw_plans(made)
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="24"', picture.shapes)
    rows = {float(y): [] for _, y, _ in boxes}
    for x, y, width in boxes:
        rows[float(y)] += [float(x), float(x) + float(width)]
    lengths = [max(ends) - min(ends) for ends in rows.values()]
    longest = max(plan.seconds for plan in made)
    assert [length / max(lengths) for length in lengths] == pytest.approx(
        [plan.seconds / longest for plan in made], abs=0.01
    )
    assert all(plan.mesh in picture.alt for plan in made)
    assert "summing gradients" in picture.alt
    assert draw_plans(explain(*made[:2])).alt.count("computing") == 2
