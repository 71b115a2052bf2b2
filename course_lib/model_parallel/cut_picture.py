"""What crosses a cut of the model, in bytes, forward and backward."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from course_lib.core.batch import Batch
from course_lib.core.memory import BatchSize
from course_lib.core.model import Embed, Recurrent, SequenceModel
from course_lib.drawing.picture import COLORS, INK, Picture
from course_lib.model_parallel.placement import Placement
from course_lib.runtime.words import counted, memory_in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE_BLOCK, TALL_BLOCK = 0.74, 0.5  # a block's size; the distance between two blocks is 1


def draw_cut_edges(model: SequenceModel, placement: Placement, batch: Batch | BatchSize) -> Picture:
    """Draw the blocks of a model on their ranks, one row per rank, and the messages of one update.

    At each edge, activations go forward (blue) and their gradient comes back (orange). Both have the same size: steps x
    sequences x width numbers. Each size is written only once, at the first edge that has it.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch, Patch

    blocks = [block for _, block in model.numbered()]
    size = next(model.parameters()).element_size() * batch.steps * batch.sequences
    figure = Figure(figsize=(1.2 + 1.05 * len(blocks), 0.9 + 0.85 * placement.stages), layout="constrained")
    axes = figure.subplots()
    look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": "white", "edgecolor": INK}
    for place, (block, rank) in enumerate(zip(blocks, placement.stage_of, strict=True)):
        axes.add_patch(FancyBboxPatch((place - WIDE_BLOCK / 2, rank - TALL_BLOCK / 2), WIDE_BLOCK, TALL_BLOCK, **look))
        name = "embed" if isinstance(block, Embed) else "input" if place == 0 else "head"
        name = f"layer {place}" if isinstance(block, Recurrent) else name
        axes.text(place, rank, name, ha="center", va="center", color=INK)
    edges: list[int] = []
    for place, (rank, next_rank) in enumerate(pairwise(placement.stage_of)):
        if rank == next_rank:
            _arrow(axes, (place + WIDE_BLOCK / 2, rank), (place + 1 - WIDE_BLOCK / 2, rank), INK, 1.2)
            continue
        edges.append(size * blocks[place].width)
        towards = TALL_BLOCK / 2 if next_rank > rank else -TALL_BLOCK / 2
        leave, arrive = (place + 0.12, rank + towards), (place + 0.72, next_rank - towards)
        _arrow(axes, leave, arrive, COLORS["forward"], 2.0)
        _arrow(axes, (arrive[0] + 0.18, arrive[1]), (leave[0] + 0.18, leave[1]), COLORS["backward"], 2.0)
        if edges[-1] not in edges[:-1]:
            middle = ((leave[0] + arrive[0]) / 2 + 0.3, (leave[1] + arrive[1]) / 2)
            axes.text(*middle, f"{memory_in_words(edges[-1])} each", ha="left", va="center", color=INK)
    axes.set_xlim(-0.6, len(blocks) - 0.4)
    axes.set_ylim(placement.stages - 0.55, -0.45)
    axes.set_yticks(range(placement.stages), [f"rank {rank}" for rank in range(placement.stages)])
    axes.set_xticks([])
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    meanings = {"forward": "activations, forward", "backward": "their gradient, back"}
    handles = [Patch(color=COLORS[name], label=meaning) for name, meaning in meanings.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    words = (
        f"{len(blocks)} blocks on {placement.stages} ranks, cut at {counted(len(edges), 'edge')}: at each, activations "
        f"go forward and their gradient comes back, {memory_in_words(2 * sum(edges))} in all"
    )
    return Picture(figure, words)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str, width: float) -> None:
    look = {"arrowstyle": "-|>", "linewidth": width, "shrinkA": 0, "shrinkB": 0, "color": color}
    axes.annotate("", end, start, arrowprops=look)
