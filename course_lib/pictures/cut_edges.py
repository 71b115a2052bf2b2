"""Where a model is cut over ranks: its blocks in a row, and what crosses each edge, forward and back."""

from __future__ import annotations

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from course_lib.data import Batch
from course_lib.lstm.memory import BatchSize
from course_lib.lstm.model import Embed, Recurrent, SequenceModel
from course_lib.pictures.palette import COLOURS, INK
from course_lib.pictures.picture import Picture
from course_lib.planning.placement import Placement

WIDTH, HEIGHT = 0.74, 0.5  # of a block, in units of the distance between two


def cut_edges(model: SequenceModel, placement: Placement, batch: Batch | BatchSize) -> Picture:
    """Draw the blocks of a model on their ranks, a row for each, and the messages of one update.

    At an edge, the activations go forward (blue) and their gradient comes back (orange), of the same size: steps x
    sequences x width numbers each.
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
            _arrow(axes, (place + WIDTH / 2, rank), (place + 1 - WIDTH / 2, rank), INK, 1.2)
        else:
            edges.append(size * blocks[place].width)
            _draw_edge(axes, place, rank, next_rank, f"{edges[-1] / 2**10:,.3g} KiB")
    _dress(axes, len(blocks), placement.stages)
    handles = [
        Patch(color=COLOURS["forward"], label="activations, forward"),
        Patch(color=COLOURS["backward"], label="their gradient, back"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    cuts = "1 edge" if len(edges) == 1 else f"{len(edges)} edges"
    words = (
        f"{len(blocks)} blocks on {placement.stages} ranks, cut at {cuts}: at each, activations go forward and their "
        f"gradient comes back, {sum(edges) * 2 / 2**10:,.3g} KiB in all"
    )
    return Picture(figure, words)


def _draw_block(axes: Axes, place: int, rank: int, name: str) -> None:
    corner = (place - WIDTH / 2, rank - HEIGHT / 2)
    box = FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.08", facecolor="white")
    box.set_edgecolor(INK)
    axes.add_patch(box)
    axes.text(place, rank, name, ha="center", va="center", fontsize=9, color=INK)


def _draw_edge(axes: Axes, place: int, rank: int, next_rank: int, label: str) -> None:
    """Both messages, side by side, between a block's box and the next one's."""
    towards = HEIGHT / 2 if next_rank > rank else -HEIGHT / 2
    leave, arrive = (place + 0.12, rank + towards), (place + 0.72, next_rank - towards)
    _arrow(axes, leave, arrive, COLOURS["forward"], 2.0)
    _arrow(axes, (arrive[0] + 0.18, arrive[1]), (leave[0] + 0.18, leave[1]), COLOURS["backward"], 2.0)
    middle = ((leave[0] + arrive[0]) / 2 + 0.3, (leave[1] + arrive[1]) / 2)
    axes.text(*middle, label, ha="left", va="center", fontsize=8, color=INK)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, width: float) -> None:
    style = {"arrowstyle": "-|>", "linewidth": width, "shrinkA": 0, "shrinkB": 0, "color": colour}
    axes.annotate("", end, start, arrowprops=style)


def _dress(axes: Axes, blocks: int, ranks: int) -> None:
    axes.set_xlim(-0.6, blocks - 0.4)
    axes.set_ylim(ranks - 0.55, -0.45)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set_xticks([])
    axes.tick_params(length=0, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)


def _name(place: int, block: object) -> str:
    if isinstance(block, Recurrent):
        return f"layer {place}"
    return "words in" if isinstance(block, Embed) else ("way in" if place == 0 else "way out")
