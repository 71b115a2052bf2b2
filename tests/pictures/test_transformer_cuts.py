"""Pictures of a cut transformer: their boxes are the ranks' shares, and their words say the same numbers."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from course_lib.pictures import causal_pieces, split_mlp
from course_lib.pictures.cuts import RANKS


def widths(axes, rank: int, height: float) -> list[float]:
    ours = [box for box in axes.patches if to_hex(box.get_facecolor()).upper() == RANKS[rank].upper()]
    return [box.get_width() for box in ours if hasattr(box, "get_width") and box.get_height() == height]


def test_every_rank_has_its_columns_and_the_words_count_them():
    picture = split_mlp(columns=10, ranks=4)
    (axes,) = picture.figure.axes
    assert [widths(axes, rank, height=1)[0] for rank in range(4)] == pytest.approx([0.6, 0.6, 0.4, 0.4])
    assert "rank 0 has 3, rank 1 has 3, rank 2 has 2, rank 3 has 2" in repr(picture)


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ((0, 1, 2, 3), "rank 0 has 6.2%, rank 1 has 18.8%, rank 2 has 31.2%, rank 3 has 43.8%"),
        ((0, 1, 1, 0), "rank 0 has 50.0%, rank 1 has 50.0%"),
    ],
)
def test_the_causal_triangle_says_how_much_each_rank_computes(owners, words):
    picture = causal_pieces(owners)
    (axes,) = picture.figure.axes
    assert len(axes.patches) == len(owners) * (len(owners) + 1) / 2
    assert words in repr(picture)


def test_more_ranks_than_colors_are_refused():
    with pytest.raises(ValueError, match="ranks=5"):
        split_mlp(8, 5)
    with pytest.raises(ValueError, match="ranks=5"):
        causal_pieces(range(5))
