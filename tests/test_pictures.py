"""Pictures show what was recorded, and say it in words."""

from __future__ import annotations

import pytest

from course_lib.pictures import messages, timeline
from course_lib.pictures.messages import matched
from course_lib.pictures.palette import COLOURS, OTHERS, colours_for
from course_lib.trace import Span, span


def bars(picture) -> list[tuple[float, float, float]]:
    """(left, right, row) of every bar drawn, in milliseconds."""
    (axes,) = picture.figure.axes
    boxes = [path.get_extents() for bar in axes.collections for path in bar.get_paths()]
    return sorted((round(box.x0, 3), round(box.x1, 3), round((box.y0 + box.y1) / 2)) for box in boxes)


def test_a_timeline_has_one_bar_per_span_on_its_ranks_row():
    spans = [Span(0, "forward", 0.0, 0.010), Span(1, "forward", 0.010, 0.020), Span(1, "backward", 0.020, 0.050)]
    picture = timeline(spans, ranks=2)
    assert bars(picture) == [(0, 10, 0), (10, 20, 1), (20, 50, 1)]
    assert picture.alt == "Timeline of 2 ranks: forward, backward"


def test_what_happens_during_something_else_is_drawn_at_half_height():
    picture = timeline([Span(0, "backward", 5.0, 5.1), Span(0, "communication", 5.02, 5.05)], ranks=1)
    heights = [path.get_extents().height for bar in picture.figure.axes[0].collections for path in bar.get_paths()]
    assert heights == pytest.approx([0.76, 0.38])
    assert bars(picture)[0][:2] == (0, 100)


def test_a_paced_timeline_says_so():
    picture = timeline([Span(0, "forward", 0.0, 0.01, paced=True)], ranks=1)
    assert "paced" in picture.figure.axes[0].get_xlabel()
    assert picture.alt == "Paced timeline of 1 rank: forward"


def test_a_timeline_without_spans_says_how_to_record_some():
    assert "trace.span" in timeline([], ranks=2).alt


def test_a_notebook_gets_a_png_with_alt_text():
    data, metadata = timeline([Span(0, "forward", 0.0, 0.01)], ranks=1)._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == data["text/plain"] == "Timeline of 1 rank: forward"


def test_a_meaning_keeps_its_colour_and_strangers_take_others():
    colours = colours_for(["load", "forward", "save"])
    assert colours["forward"] == COLOURS["forward"]
    assert (colours["load"], colours["save"]) == OTHERS[:2]
    assert not set(COLOURS.values()) & set(OTHERS)


def test_messages_pair_the_nth_send_with_the_nth_receive():
    spans = [
        Span(0, "send", 0.00, 0.01, peer=1),
        Span(0, "send", 0.02, 0.03, peer=1),
        Span(0, "send", 0.03, 0.04, peer=2),
        Span(1, "receive", 0.00, 0.02, peer=0),
        Span(1, "receive", 0.02, 0.05, peer=0),
        Span(1, "forward", 0.05, 0.06),
    ]
    assert [(send.start, receive.end) for send, receive in matched(spans)] == [(0.0, 0.02), (0.02, 0.05)]
    picture = messages(spans, ranks=3)
    assert picture.alt == "Messages between 3 ranks: 2, over the links 0 to 1"


def test_a_span_of_negative_length_is_refused():
    with pytest.raises(ValueError, match="at_least=-1"), span("forward", at_least=-1):
        pass
