"""Pictures of a model that is cut between its blocks, and the diagrams that never change."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

from course_lib.core.memory import BatchSize
from course_lib.core.model import lstm_model
from course_lib.drawing.picture import COLORS
from course_lib.drawing.svg import DIAGRAMS, diagram
from course_lib.model_parallel.cut_picture import draw_cut_edges
from course_lib.model_parallel.placement import equal_count, round_robin

MODEL = lstm_model(vocabulary=40, hidden=8, layers=6)
ONE_MESSAGE = 4 * 12 * 5 * 8  # bytes: 12 steps of 5 sequences, 8 numbers each


def arrows(picture, color: str) -> int:
    """How many arrows of that color there are."""
    (axes,) = picture.figure.axes
    patches = [text.arrow_patch for text in axes.texts if getattr(text, "arrow_patch", None)]
    return sum(to_hex(patch.get_edgecolor()) == color.lower() for patch in patches)


@pytest.mark.parametrize(("place", "edges"), [(equal_count, 3), (round_robin, 7)])
def test_every_edge_has_a_message_forward_and_one_back(place, edges):
    picture = draw_cut_edges(MODEL, place(8, 4), BatchSize(steps=12, sequences=5))
    assert arrows(picture, COLORS["forward"]) == arrows(picture, COLORS["backward"]) == edges
    assert f"8 blocks on 4 ranks, cut at {edges} edges" in picture.alt
    assert f"{2 * edges * ONE_MESSAGE / 1024:.3g} KiB in all" in picture.alt
    (axes,) = picture.figure.axes
    sizes = [text.get_text() for text in axes.texts if "KiB" in text.get_text()]
    assert sizes == [f"{ONE_MESSAGE / 1024:.3g} KiB each"]  # all are equal, and one says it
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert [round(box.get_y() + box.get_height() / 2) for box in boxes] == list(place(8, 4).stage_of)


@pytest.mark.parametrize("name", sorted(file.stem for file in DIAGRAMS.glob("*.svg")))
def test_a_diagram_is_an_image_whose_words_are_its_title(name):
    drawn = diagram(name)
    assert ElementTree.fromstring(drawn.alone).get("aria-label") == drawn.alt == repr(drawn)
    assert len(drawn.alt) > 50
    assert drawn._repr_mimebundle_()["text/html"].startswith('<img alt="')


def test_a_diagram_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(ValueError, match="there is no diagram 'ring': choose among causal-pieces, layer-by-time, mesh"):
        diagram("ring")
