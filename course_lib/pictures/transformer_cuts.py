"""How a transformer is split over ranks: an MLP by column and row, and a causal sequence by pieces of time."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from course_lib.pictures.cuts import RANKS, arrow
from course_lib.pictures.picture import COLORS, INK, LETTERS, Picture
from course_lib.strategies.tensor_parallel import shares

ROWS, WIDTH = 1.0, 0.8  # of X and Y, where all columns of A are 2


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
    apart = 1.45 if ranks <= 2 else 2.0 / (ranks - 1)  # each has the size of Y; more than two overlap
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
    handles.append(Patch(facecolor=COLORS["communication"], label="all-reduce: the terms of $Y$ are added up"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)), frameon=False)
    words = ", ".join(f"rank {rank} has {size}" for rank, size in enumerate(sizes))
    return Picture(
        figure,
        f"An MLP with {columns} columns split over {ranks} {'rank' if ranks == 1 else 'ranks'}: {words}, and the "
        "same rows of the second matrix; every rank needs all of X, and one all-reduce adds up the terms of Y",
    )


def causal_pieces(owners: Sequence[int]) -> Picture:
    """Draw which rank compares the queries of each piece of a causal sequence with the keys of which piece.

    `owners` has the rank of each piece, in order. A rank computes the row of its queries: full squares for earlier
    pieces, and a triangle, half a square, for its own.
    """
    ranks = max(owners, default=-1) + 1
    _check_ranks(ranks)
    figure = Figure(figsize=(1.6 + 0.5 * len(owners), 1.2 + 0.42 * len(owners)), layout="constrained")
    axes = figure.subplots()
    work = [0.0] * ranks
    for query, rank in enumerate(owners):
        for key in range(query):
            axes.add_patch(Rectangle((key, query), 1, 1, facecolor=RANKS[rank], edgecolor="white"))
        axes.fill([query, query, query + 1], [query, query + 1, query + 1], facecolor=RANKS[rank], edgecolor="white")
        work[rank] += query + 0.5
    axes.set_xlim(-0.1, len(owners) + 0.1)
    axes.set_ylim(len(owners) + 0.1, -0.1)
    axes.set_xticks([place + 0.5 for place in range(len(owners))], [str(place) for place in range(len(owners))])
    axes.set_yticks([place + 0.5 for place in range(len(owners))], [f"{p}: rank {r}" for p, r in enumerate(owners)])
    axes.set_xlabel("keys of piece", color=INK)
    axes.set_ylabel("queries of piece", color=INK)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    axes.set_aspect("equal")
    shares_of_work = [f"{part / sum(work):.1%}" for part in work]
    handles = [Patch(facecolor=RANKS[rank], label=f"rank {rank}: {share}") for rank, share in enumerate(shares_of_work)]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    described = ", ".join(f"rank {rank} has {share}" for rank, share in enumerate(shares_of_work))
    return Picture(figure, f"A causal sequence in {len(owners)} pieces on {ranks} ranks; of the work, {described}")


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
    """Draw a matrix that is two wide, cut into the ranks' columns."""
    at = left
    for rank, size in enumerate(sizes):
        _box(axes, at, top, 2 * size / sum(sizes), height, RANKS[rank])
        at += 2 * size / sum(sizes)
    axes.text(left + 1, top - 0.12, name, ha="center", va="bottom", color=INK)
