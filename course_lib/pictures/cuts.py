"""How a model is split over ranks: between blocks, inside an LSTM cell, into a mesh; and its cells, layer by time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from course_lib.data import Batch
from course_lib.lstm.memory import BatchSize
from course_lib.lstm.model import Embed, Recurrent, SequenceModel
from course_lib.pictures.picture import COLORS, INK, OTHERS, Picture
from course_lib.planning.placement import Placement
from course_lib.strategies.tensor_parallel import GATES, shares

BLOCK_WIDTH, BLOCK_HEIGHT = 0.74, 0.5  # a block's size; the distance between two blocks is 1


def cut_edges(model: SequenceModel, placement: Placement, batch: Batch | BatchSize) -> Picture:
    """Draw the blocks of a model on their ranks, one row per rank, and the messages of one update.

    At each edge, activations go forward (blue) and their gradient comes back (orange). Both have the same size: steps x
    sequences x width numbers. Each size is written only once, at the first edge that has it.
    """
    blocks = [block for _, block in model.numbered()]
    size = next(model.parameters()).element_size() * batch.steps * batch.sequences
    figure = Figure(figsize=(1.2 + 1.05 * len(blocks), 0.9 + 0.85 * placement.stages), layout="constrained")
    axes = figure.subplots()
    for place, (block, rank) in enumerate(zip(blocks, placement.stage_of, strict=True)):
        _draw_block(axes, place, rank, _name(place, block))
    edges = []
    for place, (rank, next_rank) in enumerate(pairwise(placement.stage_of)):
        if rank == next_rank:
            arrow(axes, (place + BLOCK_WIDTH / 2, rank), (place + 1 - BLOCK_WIDTH / 2, rank), INK, 1.2)
        else:
            edges.append(size * blocks[place].width)
            _draw_edge(axes, place, rank, next_rank, "" if edges[-1] in edges[:-1] else f"{_kibibytes(edges[-1])} each")
    _dress(axes, len(blocks), placement.stages)
    handles = [
        Patch(color=COLORS["forward"], label="activations, forward"),
        Patch(color=COLORS["backward"], label="their gradient, back"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    cuts = "1 edge" if len(edges) == 1 else f"{len(edges)} edges"
    words = (
        f"{len(blocks)} blocks on {placement.stages} ranks, cut at {cuts}: at each, activations go forward and their "
        f"gradient comes back, {_kibibytes(2 * sum(edges))} in all"
    )
    return Picture(figure, words)


def _kibibytes(size: int) -> str:
    kibibytes = size / 2**10
    return f"{kibibytes:,.0f} KiB" if kibibytes >= 100 else f"{kibibytes:.3g} KiB"


def _draw_block(axes: Axes, place: int, rank: int, name: str) -> None:
    _rounded_box(axes, place, rank, BLOCK_WIDTH, BLOCK_HEIGHT)
    axes.text(place, rank, name, ha="center", va="center", color=INK)


def _draw_edge(axes: Axes, place: int, rank: int, next_rank: int, label: str) -> None:
    """Draw both messages side by side, between the boxes of a block and the next one."""
    towards = BLOCK_HEIGHT / 2 if next_rank > rank else -BLOCK_HEIGHT / 2
    leave, arrive = (place + 0.12, rank + towards), (place + 0.72, next_rank - towards)
    arrow(axes, leave, arrive, COLORS["forward"], 2.0)
    arrow(axes, (arrive[0] + 0.18, arrive[1]), (leave[0] + 0.18, leave[1]), COLORS["backward"], 2.0)
    middle = ((leave[0] + arrive[0]) / 2 + 0.3, (leave[1] + arrive[1]) / 2)
    axes.text(*middle, label, ha="left", va="center", color=INK)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str, width: float = 1.6, **style: Any
) -> None:
    look = {"arrowstyle": "-|>", "linewidth": width, "shrinkA": 0, "shrinkB": 0, "color": color, **style}
    axes.annotate("", end, start, arrowprops=look)


def _rounded_box(axes: Axes, x: float, y: float, width: float, height: float) -> None:
    look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": "white", "edgecolor": INK}
    axes.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, **look))


def _dress(axes: Axes, blocks: int, ranks: int) -> None:
    axes.set_xlim(-0.6, blocks - 0.4)
    axes.set_ylim(ranks - 0.55, -0.45)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set_xticks([])
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)


def _name(place: int, block: object) -> str:
    if isinstance(block, Recurrent):
        return f"layer {place}"
    return "embed" if isinstance(block, Embed) else ("input" if place == 0 else "head")


RANKS = (OTHERS[0], OTHERS[2], OTHERS[1], OTHERS[5])  # of ranks 0, 1, ...; COLORS has none of these
NAMES = ("i", "f", "g", "o")
# The left edges of the columns, and their widths.
OLD, MATRIX, PARTS, NEW, THIN, WIDE = 0.0, 1.5, 4.6, 7.2, 0.45, 2.0
INPUTS_APART = 0.75  # the distance of a cell's two inputs from the middle


def split_cell(hidden: int, ranks: int) -> Picture:
    """Draw one step of a cell of `hidden` units on `ranks` ranks: the whole h and x, each rank's rows of every gate,
    its units of c and h, and the whole new h.

    Rows have the color of their rank. The green arrows are the messages: an all-gather after every step.
    """
    if not 1 <= ranks <= len(RANKS):
        raise ValueError(f"ranks={ranks}: the picture has colors for 1 to {len(RANKS)}")
    sizes = shares(hidden, ranks)
    unit = 1 / hidden
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    middle = GATES / 2 - 0.5
    for name, top in (("$h_{t-1}$", middle - INPUTS_APART), ("$x_t$", middle + INPUTS_APART)):
        _column(axes, OLD, top, sizes, unit, colored=False)
        axes.text(OLD + THIN / 2, top - 0.06, name, ha="center", va="bottom", color=INK)
        arrow(axes, (OLD + THIN + 0.08, top + 0.5), (MATRIX - 0.4, middle + 0.5), INK)
    for gate, name in enumerate(NAMES):
        top = gate * 1.12 - 0.18
        _column(axes, MATRIX, top, sizes, unit, width=WIDE)
        axes.text(MATRIX - 0.12, top + 0.5, name, ha="right", va="center", color=INK)
    _column(axes, PARTS, -0.18, sizes, unit / 2)
    axes.text(PARTS + THIN + 0.1, 0.07, "$c_{t-1}$", ha="left", va="center", color=INK)
    arrow(axes, (PARTS + THIN / 2, 0.38), (PARTS + THIN / 2, middle - 0.28 * (ranks - 1) / 2 - 0.06), INK)
    _column(axes, PARTS, middle, sizes, unit, gap=0.28)
    _column(axes, NEW, middle, sizes, unit, colored=False)
    arrow(axes, (MATRIX + WIDE + 0.1, middle + 0.5), (PARTS - 0.1, middle + 0.5), INK)
    for rank in range(ranks):
        height = middle + (sum(sizes[:rank]) + sizes[rank] / 2) * unit + 0.28 * (rank - (ranks - 1) / 2)
        arrow(axes, (PARTS + THIN + 0.08, height), (NEW - 0.08, middle + 0.5), COLORS["communication"])
    _captions(axes, middle, ranks)
    handles = [
        Patch(facecolor=RANKS[rank], label=f"rank {rank}: {sizes[rank]} of {hidden} units") for rank in range(ranks)
    ]
    handles.append(Patch(facecolor=COLORS["communication"], label="all-gather, after every step"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)), frameon=False)
    return Picture(figure, _describe_cell(hidden, sizes))


def _column(
    axes: Axes,
    left: float,
    top: float,
    sizes: Sequence[int],
    unit: float,
    *,
    width: float = THIN,
    gap: float = 0.0,
    colored: bool = True,
) -> None:
    """Draw one box for each rank's rows, from top to bottom, or a single box if every rank has all of them."""
    if not colored:
        axes.add_patch(Rectangle((left, top), width, 1, facecolor="white", edgecolor=INK))
        return
    at = top - gap * (len(sizes) - 1) / 2
    for rank, size in enumerate(sizes):
        axes.add_patch(Rectangle((left, at), width, size * unit, facecolor=RANKS[rank], edgecolor=INK, linewidth=0.8))
        at += size * unit + gap


def _captions(axes: Axes, middle: float, ranks: int) -> None:
    captions = {
        OLD + THIN / 2: "whole\non every rank",
        MATRIX + WIDE / 2: "$W_{hh}$ and $W_{ih}$: each\nrank's rows of every gate",
        PARTS + THIN / 2: "own units\nof $c_t$ and $h_t$",
        NEW + THIN / 2: "$h_t$, whole\non every rank",
    }
    for x, words in captions.items():
        axes.text(x, GATES * 1.12 - 0.02, words, ha="center", va="top", color=INK)
    axes.set_xlim(-0.6, NEW + THIN + 0.7)
    axes.set_ylim(GATES * 1.12 + 0.75, -0.3)
    axes.set_axis_off()


def _describe_cell(hidden: int, sizes: Sequence[int]) -> str:
    units = ", ".join(f"rank {rank} has {size}" for rank, size in enumerate(sizes))
    return (
        f"A cell of {hidden} units split over {len(sizes)} {'rank' if len(sizes) == 1 else 'ranks'}: {units}, with "
        "their rows of all four gates; every rank needs all of the old h and of x, computes its own units of c and h "
        "from its own units of the old c, and after every step an all-gather puts the new h together"
    )


RANK_WIDTH, RANK_HEIGHT = 0.62, 0.5  # the size of a rank's box; a table cell is 1


def mesh(replicas: int, stages: int) -> Picture:
    """Draw replicas x stages ranks: messages along a row, sums of gradients within a column."""
    figure = Figure(figsize=(1.6 + 1.7 * stages, 1.2 + 0.85 * replicas), layout="constrained")
    axes = figure.subplots()
    for replica in range(replicas):
        for stage in range(stages):
            _rounded_box(axes, stage, replica, RANK_WIDTH, RANK_HEIGHT)
            axes.text(
                stage,
                replica,
                f"rank {replica * stages + stage}",
                ha="center",
                va="center",
                color=INK,
            )
            if stage:
                arrow_ends = (stage - 1 + RANK_WIDTH / 2, replica), (stage - RANK_WIDTH / 2, replica)
                arrow(axes, *arrow_ends, COLORS["forward"], 1.8, arrowstyle="<|-|>")
            if replica:
                arrow_ends = (stage, replica - 1 + RANK_HEIGHT / 2), (stage, replica - RANK_HEIGHT / 2)
                arrow(axes, *arrow_ends, COLORS["communication"], 1.8, arrowstyle="<|-|>")
    axes.set_xlim(-0.6, stages - 0.4)
    axes.set_ylim(replicas - 0.5, -0.5)
    axes.set_xticks(range(stages), [f"stage {stage}" for stage in range(stages)])
    axes.set_yticks(range(replicas), [f"replica {replica}" for replica in range(replicas)])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    handles = [
        Patch(color=COLORS["forward"], label="activations, and their gradients back"),
        Patch(color=COLORS["communication"], label="sum of the stage's gradients"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=1, frameon=False)
    words = f"{replicas} replicas of {stages} stages on {replicas * stages} ranks"
    return Picture(figure, f"Mesh of {words}: messages along each row, gradients summed in each column")


SIDE = 0.8  # the side of a cell; the distance between two cells is 1


def layer_by_time(layers: int, steps: int, diagonal: int | None = None) -> Picture:
    """Draw the grid: one row per layer, one column per step. Each cell shows the number of its diagonal, layer + step.

    A cell needs its left neighbor (the layer's state) and the one above it (the input). The framed cells of one
    `diagonal`, by default the middle one, which is the longest, do not depend on each other.
    """
    if min(layers, steps) < 1:
        raise ValueError(f"layers={layers}, steps={steps}: a grid needs at least one of each")
    diagonals = layers + steps - 1
    chosen = (diagonals - 1) // 2 if diagonal is None else diagonal
    if not 0 <= chosen < diagonals:
        raise ValueError(f"diagonal={chosen}: give one from 0 to {diagonals - 1}")
    figure = Figure(figsize=(1.4 + 0.55 * steps, 1.2 + 0.5 * layers), layout="constrained")
    axes = figure.subplots()
    for layer in range(layers):
        for step in range(steps):
            _draw_cell(axes, layer, step, is_chosen=layer + step == chosen)
            if step:
                arrow(axes, (step - 1 + SIDE / 2, layer), (step - SIDE / 2, layer), INK, 0.8, mutation_scale=7)
            if layer:
                arrow(axes, (step, layer - 1 + SIDE / 2), (step, layer - SIDE / 2), INK, 0.8, mutation_scale=7)
    axes.set_xlim(-0.6, steps - 0.4)
    axes.set_ylim(layers - 0.5, -0.5)
    axes.set_yticks(range(layers), [f"layer {layer + 1}" for layer in range(layers)])
    axes.set_xticks(range(steps), [f"{step + 1}" for step in range(steps)])
    axes.set_xlabel("time step", color=INK)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    framed = sum(0 <= chosen - layer < steps for layer in range(layers))
    handles = [
        Patch(
            facecolor=COLORS["forward"], label=f"diagonal {chosen + 1}: {framed} cells that don't depend on each other"
        )
    ]
    figure.legend(handles=handles, loc="outside lower center", frameon=False)
    return Picture(
        figure,
        f"{layers} layers x {steps} steps: {layers * steps} cells on {diagonals} diagonals. Each cell needs the one to "
        f"its left and the one above. The {framed} cells of diagonal {chosen + 1} are marked: they can run together",
    )


def _draw_cell(axes: Axes, layer: int, step: int, is_chosen: bool) -> None:
    color = COLORS["forward"] if is_chosen else "white"
    corner = (step - SIDE / 2, layer - SIDE / 2)
    axes.add_patch(Rectangle(corner, SIDE, SIDE, facecolor=color, edgecolor=INK, linewidth=0.9))
    ink = "white" if is_chosen else INK
    axes.text(step, layer, str(layer + step + 1), ha="center", va="center", color=ink)
