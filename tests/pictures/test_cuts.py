"""Pictures of a model that is cut: between blocks, over time, and inside a cell."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch, Rectangle

from course_lib.lstm.memory import BatchSize
from course_lib.lstm.model import lstm_model
from course_lib.pictures import cut_edges, layer_by_time, split_cell
from course_lib.pictures.cuts import RANKS
from course_lib.pictures.picture import COLORS
from course_lib.planning.placement import equal_count, round_robin

MODEL = lstm_model(vocabulary=40, hidden=8, layers=6)
ONE_MESSAGE = 4 * 12 * 5 * 8  # bytes: 12 steps of 5 sequences, 8 numbers each


def arrows(picture, color: str) -> int:
    """How many arrows of that color there are."""
    (axes,) = picture.figure.axes
    patches = [text.arrow_patch for text in axes.texts if getattr(text, "arrow_patch", None)]
    return sum(to_hex(patch.get_edgecolor()) == color.lower() for patch in patches)


@pytest.mark.parametrize(("place", "edges"), [(equal_count, 3), (round_robin, 7)])
def test_every_edge_has_a_message_forward_and_one_back(place, edges):
    picture = cut_edges(MODEL, place(8, 4), BatchSize(steps=12, sequences=5))
    assert arrows(picture, COLORS["forward"]) == arrows(picture, COLORS["backward"]) == edges
    assert f"8 blocks on 4 ranks, cut at {edges} edges" in picture.alt
    assert f"{2 * edges * ONE_MESSAGE / 1024:.3g} KiB in all" in picture.alt
    (axes,) = picture.figure.axes
    sizes = [text.get_text() for text in axes.texts if "KiB" in text.get_text()]
    assert sizes == [f"{ONE_MESSAGE / 1024:.3g} KiB each"]  # all are equal, and one says it


def test_a_block_stands_on_its_ranks_row():
    (axes,) = cut_edges(MODEL, round_robin(8, 4), BatchSize(12, 5)).figure.axes
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert [round(box.get_y() + box.get_height() / 2) for box in boxes] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [text.get_text() for text in axes.texts][:2] == ["embed", "layer 1"]


def test_the_cells_of_a_diagonal_are_marked():
    picture = layer_by_time(layers=3, steps=5)
    (axes,) = picture.figure.axes
    cells = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    marked = [cell for cell in cells if to_hex(cell.get_facecolor()) == COLORS["forward"].lower()]
    assert (len(cells), len(marked)) == (15, 3)
    assert {round(cell.get_x() + cell.get_y() + 0.8) for cell in marked} == {3}  # layer + step, counted from 0
    assert "15 cells on 7 diagonals" in picture.alt


def test_a_cell_needs_the_one_to_its_left_and_the_one_above():
    (axes,) = layer_by_time(layers=3, steps=5).figure.axes
    assert sum(getattr(text, "arrow_patch", None) is not None for text in axes.texts) == 3 * 4 + 2 * 5


@pytest.mark.parametrize(("given", "sentence"), [((0, 3), "at least one of each"), ((2, 2, 3), "give one from 0 to 2")])
def test_a_grid_without_cells_is_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        layer_by_time(*given)


def test_a_split_cell_gives_every_rank_some_rows_of_every_gate():
    picture = split_cell(hidden=7, ranks=3)
    (axes,) = picture.figure.axes
    of_rank = [
        [patch for patch in axes.patches if to_hex(patch.get_facecolor()) == RANKS[rank].lower()] for rank in range(3)
    ]
    assert [len(boxes) for boxes in of_rank] == [6, 6, 6]  # rows of four gates, and own units of the old c and the new
    assert [round(7 * boxes[0].get_height()) for boxes in of_rank] == [3, 2, 2]
    assert arrows(picture, COLORS["communication"]) == 3
    assert "rank 0 has 3, rank 1 has 2, rank 2 has 2" in picture.alt


def test_a_cell_split_over_too_many_ranks_is_refused():
    with pytest.raises(ValueError, match="colors for 1 to 4"):
        split_cell(8, 5)
