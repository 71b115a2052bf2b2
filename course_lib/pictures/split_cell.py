"""An LSTM cell that is cut inside: which rows of the matrices a rank has, and what it must ask the others for."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from course_lib.pictures.palette import COLOURS, INK, OTHERS
from course_lib.pictures.picture import Picture
from course_lib.strategies.tensor_parallel import GATES, shares

RANKS = (OTHERS[0], OTHERS[2], OTHERS[3], OTHERS[5])  # rank 0, 1, ...: no colour of a forward pass or a message
NAMES = ("i", "f", "g", "o")
# Where the columns of the picture begin, and how wide they are.
OLD, MATRIX, PARTS, NEW, THIN, WIDE = 0.0, 1.5, 4.6, 7.2, 0.45, 2.0


def split_cell(hidden: int, ranks: int) -> Picture:
    """Draw a step of a cell of `hidden` units on `ranks` ranks: h whole, rows of every gate, own units, h whole again.

    Rows have the colour of the rank that has them. The green arrows are the message: after every step, an all-gather.
    """
    if not 1 <= ranks <= len(RANKS):
        raise ValueError(f"ranks={ranks}: the picture has colours for 1 to {len(RANKS)}")
    sizes = shares(hidden, ranks)
    unit = 1 / hidden
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    middle = GATES / 2 - 0.5
    _column(axes, OLD, middle, sizes, unit, coloured=False)
    for gate, name in enumerate(NAMES):
        top = gate * 1.12 - 0.18
        _column(axes, MATRIX, top, sizes, unit, width=WIDE)
        axes.text(MATRIX - 0.12, top + 0.5, name, ha="right", va="center", color=INK)
    _column(axes, PARTS, middle, sizes, unit, gap=0.28)
    _column(axes, NEW, middle, sizes, unit, coloured=False)
    _arrow(axes, (OLD + THIN + 0.08, middle + 0.5), (MATRIX - 0.4, middle + 0.5), INK)
    _arrow(axes, (MATRIX + WIDE + 0.1, middle + 0.5), (PARTS - 0.1, middle + 0.5), INK)
    for rank in range(ranks):
        height = middle + (sum(sizes[:rank]) + sizes[rank] / 2) * unit + 0.28 * (rank - (ranks - 1) / 2)
        _arrow(axes, (PARTS + THIN + 0.08, height), (NEW - 0.08, middle + 0.5), COLOURS["communication"])
    _captions(axes, middle, ranks)
    handles = [
        Patch(facecolor=RANKS[rank], label=f"rank {rank}: {sizes[rank]} of {hidden} units") for rank in range(ranks)
    ]
    handles.append(Patch(facecolor=COLOURS["communication"], label="all-gather, after every step"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)), frameon=False)
    return Picture(figure, _describe(hidden, sizes))


def _column(
    axes: Axes,
    left: float,
    top: float,
    sizes: Sequence[int],
    unit: float,
    *,
    width: float = THIN,
    gap: float = 0.0,
    coloured: bool = True,
) -> None:
    """A box for each rank's rows, one below the other; or one box for all, where every rank has the whole."""
    if not coloured:
        axes.add_patch(Rectangle((left, top), width, 1, facecolor="white", edgecolor=INK))
        return
    at = top - gap * (len(sizes) - 1) / 2
    for rank, size in enumerate(sizes):
        axes.add_patch(Rectangle((left, at), width, size * unit, facecolor=RANKS[rank], edgecolor=INK, linewidth=0.8))
        at += size * unit + gap


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    style = {"arrowstyle": "-|>", "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0, "color": colour}
    axes.annotate("", end, start, arrowprops=style)


def _captions(axes: Axes, middle: float, ranks: int) -> None:
    captions = {
        OLD + THIN / 2: "$h_{t-1}$, whole\non every rank",
        MATRIX + WIDE / 2: "rows of $W_{ih}$ and $W_{hh}$:\nsome of each gate",
        PARTS + THIN / 2: "own units\nof $c_t$ and $h_t$",
        NEW + THIN / 2: "$h_t$, whole\non every rank",
    }
    for x, words in captions.items():
        axes.text(x, GATES * 1.12 - 0.02, words, ha="center", va="top", fontsize=9, color=INK)
    axes.set_xlim(-0.6, NEW + THIN + 0.7)
    axes.set_ylim(GATES * 1.12 + 0.75, -0.3)
    axes.set_axis_off()


def _describe(hidden: int, sizes: Sequence[int]) -> str:
    own = ", ".join(f"rank {rank} has {size}" for rank, size in enumerate(sizes))
    return (
        f"A cell of {hidden} units split over {len(sizes)} {'rank' if len(sizes) == 1 else 'ranks'}: {own}, with their "
        "rows of all four gates; every rank needs all of the old h, computes its own units of c and h, and after every "
        "step an all-gather puts the new h together"
    )
