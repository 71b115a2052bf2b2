"""How a transformer is split over ranks: an MLP by column and row, and a causal sequence by pieces of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Polygon, Rectangle

from course_lib.pictures.cuts import RANKS, arrow
from course_lib.pictures.picture import COLORS, INK, LETTERS, Picture
from course_lib.strategies.tensor_parallel import shares

ROWS, WIDTH = 1.0, 0.8  # of X and Y; all columns of A together are 2 wide
BRIGHT = 2  # from this rank on, colors need dark letters


def split_mlp(columns: int, ranks: int) -> Picture:
    """Draw gelu(X A) B on `ranks` ranks, to scale: columns of A, the same rows of B, and a sum at the end."""
    _check_ranks(ranks)
    sizes = shares(columns, ranks)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    _box(axes, 0, 1 - ROWS / 2, WIDTH, ROWS, "white", "$X$")
    _operator(axes, 1.05, r"$\times$")
    _in_columns(axes, 1.3, 1 - WIDTH / 2, sizes, WIDTH, "$A$")
    _operator(axes, 3.75, r"$\to$")
    _in_columns(axes, 4.2, 1 - ROWS / 2, sizes, ROWS, "gelu$(XA)$")
    _operator(axes, 6.45, r"$\times$")
    at = 0.0
    for rank, size in enumerate(sizes):
        _box(axes, 6.7, at, WIDTH, 2 * size / columns, RANKS[rank], "$B$" if rank == 0 else "")
        at += 2 * size / columns
    _operator(axes, 7.8, "=")
    apart = 1.45 if ranks <= 2 else 2.0 / (ranks - 1)  # each term has the size of Y; more than two terms overlap
    for rank in range(ranks):
        middle = 1 + (rank - (ranks - 1) / 2) * apart
        name = f"gelu$(XA_{rank})B_{rank}$" if ranks <= 2 else ""
        _box(axes, 8.4, middle - ROWS / 2, WIDTH, ROWS, RANKS[rank], name)
        arrow(axes, (8.45 + WIDTH, middle), (10.15, 1), COLORS["communication"])
    _box(axes, 10.2, 1 - ROWS / 2, WIDTH, ROWS, "white", "$Y$")
    axes.set_xlim(-0.1, 11.1)
    axes.set_ylim(2.55, -0.65)
    axes.set_aspect("equal")
    axes.set_axis_off()
    handles = [Patch(facecolor=RANKS[rank], label=f"rank {rank}: {size} columns") for rank, size in enumerate(sizes)]
    handles.append(Patch(facecolor="white", edgecolor=INK, label="whole, on every rank"))
    handles.append(Patch(facecolor=COLORS["communication"], label="all-reduce: the terms of $Y$ are added up"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    words = ", ".join(f"rank {rank} has {size}" for rank, size in enumerate(sizes))
    return Picture(
        figure,
        f"An MLP with {columns} columns split over {ranks} {'rank' if ranks == 1 else 'ranks'}: {words}, and the "
        "same rows of the second matrix; every rank needs all of X, and one all-reduce adds up the terms of Y",
    )


def ring_turns(ranks: int) -> Picture:
    """Draw whose keys visit each rank of a ring, turn by turn, and which of them the rank's queries can see.

    A rank's queries see all keys of earlier pieces, no keys of later pieces, and half of the pairs in the rank's own
    piece: a triangle.
    """
    _check_ranks(ranks)
    figure = Figure(figsize=(1.5 + 1.1 * ranks, 1.1 + 0.9 * ranks), layout="constrained")
    axes = figure.subplots()
    for rank, turn in product(range(ranks), repeat=2):
        owner, left, top = (rank - turn) % ranks, 1.3 * turn, 1.15 * rank
        later = owner > rank
        axes.add_patch(Rectangle((left, top), 1, 1, facecolor="white", edgecolor=INK, hatch="//" if later else None))
        if not later:
            corners = [(left, top), (left, top + 1), (left + 1, top + 1), (left + 1, top)][: 3 if turn == 0 else 4]
            axes.add_patch(Polygon(corners, facecolor=RANKS[owner], edgecolor=INK))
        place = (left + 0.3, top + 0.74) if turn == 0 else (left + 0.5, top + 0.5)
        color = INK if later or owner >= BRIGHT else "white"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 2} if later else None
        axes.text(*place, str(owner), ha="center", va="center", color=color, bbox=box)
    axes.set_xlim(-0.1, 1.3 * ranks - 0.2)
    axes.set_ylim(1.15 * ranks - 0.05, -0.1)
    axes.set_xticks([1.3 * turn + 0.5 for turn in range(ranks)], [f"turn {turn}" for turn in range(ranks)])
    axes.set_yticks([1.15 * rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
    _bare(axes)
    handles = [
        Patch(facecolor=RANKS[0], label="0: the visiting keys are rank 0's"),
        Patch(facecolor="white", edgecolor=INK, hatch="//", label="hidden: they come later"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    idle = ranks * (ranks - 1) // 2
    return Picture(
        figure,
        f"{ranks} ranks of a ring, {ranks} turns: in turn t, rank r has the keys of rank r - t, and in {idle} of "
        f"{ranks * ranks} squares they come later than all of its queries",
    )


def causal_pieces(cuts: Mapping[str, Sequence[int]]) -> Picture:
    """Draw, for each cut of a causal sequence, which rank compares which piece's queries with which piece's keys.

    A cut is the list of the pieces' ranks, in order. A rank computes the rows of its queries: full squares for keys of
    earlier pieces, and a triangle, half a square, for keys of the same piece.
    """
    ranks = max((rank + 1 for owners in cuts.values() for rank in owners), default=0)
    _check_ranks(ranks)
    figure = Figure(figsize=(9, 1.1 + 6.6 / len(cuts)), layout="constrained")
    words = []
    for axes, (name, owners) in zip(figure.subplots(1, len(cuts), squeeze=False)[0], cuts.items(), strict=True):
        work = _draw_pieces(axes, owners, ranks)
        shares_of_work = [f"{part / sum(work):.0%}" for part in work]
        axes.set_title(f"{name}: {', '.join(shares_of_work)}", loc="left", color=INK)
        described = ", ".join(f"rank {rank} has {share}" for rank, share in enumerate(shares_of_work))
        words.append(f"{name}, in {len(owners)} pieces, of the work {described}")
    return Picture(figure, f"A causal sequence on {ranks} ranks: {'; '.join(words)}")


def _draw_pieces(axes: Axes, owners: Sequence[int], ranks: int) -> list[float]:
    """Draw one cut, and return each rank's work in squares."""
    work = [0.0] * ranks
    for query, rank in enumerate(owners):
        for key in range(query):
            axes.add_patch(Rectangle((key, query), 1, 1, facecolor=RANKS[rank], edgecolor="white"))
        axes.fill([query, query, query + 1], [query, query + 1, query + 1], facecolor=RANKS[rank], edgecolor="white")
        work[rank] += query + 0.5
    edge = len(owners) * 0.0125
    axes.set_xlim(-edge, len(owners) + edge)
    axes.set_ylim(len(owners) + edge, -edge)
    middles = [place + 0.5 for place in range(len(owners))]
    axes.set_xticks(middles, [str(place) for place in range(len(owners))])
    axes.set_yticks(middles, [f"{place}: rank {rank}" for place, rank in enumerate(owners)])
    axes.set_xlabel("piece of the keys", color=INK)
    axes.set_ylabel("piece of the queries", color=INK)
    _bare(axes)
    return work


def _bare(axes: Axes) -> None:
    """Keep only the labels of the axes, and use the same scale for both, so that squares are square."""
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    axes.set_aspect("equal")


def _check_ranks(ranks: int) -> None:
    if not 1 <= ranks <= len(RANKS):
        raise ValueError(f"ranks={ranks}: the picture has colors for 1 to {len(RANKS)}")


def _box(axes: Axes, left: float, top: float, width: float, height: float, color: str, name: str = "") -> None:
    axes.add_patch(Rectangle((left, top), width, height, facecolor=color, edgecolor=INK, linewidth=0.8))
    if name:
        axes.text(left + width / 2, top - 0.12, name, ha="center", va="bottom", color=INK)


def _operator(axes: Axes, middle: float, sign: str) -> None:
    axes.text(middle, 1, sign, ha="center", va="center", fontsize=LETTERS + 4, color=INK)


def _in_columns(axes: Axes, left: float, top: float, sizes: Sequence[int], height: float, name: str) -> None:
    """Draw a matrix with a width of 2, cut into the ranks' columns."""
    at = left
    for rank, size in enumerate(sizes):
        _box(axes, at, top, 2 * size / sum(sizes), height, RANKS[rank])
        at += 2 * size / sum(sizes)
    axes.text(left + 1, top - 0.12, name, ha="center", va="bottom", color=INK)
