"""Pictures of a cut transformer: their boxes are the ranks' shares, and their words say the same numbers."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from course_lib.pictures import causal_pieces, ring_turns, split_mlp
from course_lib.pictures.cuts import RANKS


def widths(axes, rank: int, height: float) -> list[float]:
    ours = [box for box in axes.patches if to_hex(box.get_facecolor()).upper() == RANKS[rank].upper()]
    return [box.get_width() for box in ours if hasattr(box, "get_width") and box.get_height() == height]


def test_every_rank_has_its_columns_and_the_words_count_them():
    picture = split_mlp(columns=10, ranks=4)
    (axes,) = picture.figure.axes
    assert [widths(axes, rank, height=1)[0] for rank in range(4)] == pytest.approx([0.6, 0.6, 0.4, 0.4])
    assert "rank 0 has 3, rank 1 has 3, rank 2 has 2, rank 3 has 2" in repr(picture)


def test_each_causal_triangle_says_how_much_each_rank_computes():
    picture = causal_pieces({"in order": [0, 1, 2, 3], "folded": [0, 1, 1, 0]})
    assert [len(axes.patches) for axes in picture.figure.axes] == [10, 10]
    assert "in order, in 4 pieces, of the work rank 0 has 6%, rank 1 has 19%, rank 2 has 31%, rank 3 has 44%" in repr(
        picture
    )
    assert "folded, in 4 pieces, of the work rank 0 has 50%, rank 1 has 50%, rank 2 has 0%, rank 3 has 0%" in repr(
        picture
    )


def test_on_a_ring_every_rank_meets_every_rank_s_keys_and_sees_no_later_ones():
    picture = ring_turns(3)
    (axes,) = picture.figure.axes
    seen = [to_hex(patch.get_facecolor()).upper() for patch in axes.patches if hasattr(patch, "get_xy")]
    assert [seen.count(color.upper()) for color in RANKS[:3]] == [3, 2, 1]
    assert "in 3 of 9 squares they come later" in repr(picture)


def test_more_ranks_than_colors_are_refused():
    with pytest.raises(ValueError, match="ranks=5"):
        split_mlp(8, 5)
    with pytest.raises(ValueError, match="ranks=5"):
        causal_pieces({"in order": range(5)})
