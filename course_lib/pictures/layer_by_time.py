"""The cells of an LSTM, layer by time step: their dependencies, and which cells could run at the same time."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from course_lib.pictures.picture import COLOURS, INK, Picture

SIDE = 0.8  # the side of a cell, in units of the distance between two cells


def layer_by_time(layers: int, steps: int, diagonal: int | None = None) -> Picture:
    """Draw the grid: one row per layer, one column per step. Each cell shows the number of its diagonal, layer + step.

    A cell needs its left neighbor (the layer's state) and the one above it (the input). The framed cells of one
    `diagonal`, by default the longest in the middle, do not depend on each other.
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
                _needs(axes, (step - 1 + SIDE / 2, layer), (step - SIDE / 2, layer))
            if layer:
                _needs(axes, (step, layer - 1 + SIDE / 2), (step, layer - SIDE / 2))
    axes.set_xlim(-0.6, steps - 0.4)
    axes.set_ylim(layers - 0.5, -0.5)
    axes.set_yticks(range(layers), [f"layer {layer + 1}" for layer in range(layers)])
    axes.set_xticks(range(steps), [f"{step + 1}" for step in range(steps)])
    axes.set_xlabel("time step", color=INK)
    axes.tick_params(length=0, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)
    framed = sum(0 <= chosen - layer < steps for layer in range(layers))
    handles = [
        Patch(
            facecolor=COLOURS["forward"], label=f"diagonal {chosen + 1}: {framed} cells that need nothing of each other"
        )
    ]
    figure.legend(handles=handles, loc="outside lower center", frameon=False)
    return Picture(
        figure,
        f"{layers} layers x {steps} steps: {layers * steps} cells on {diagonals} diagonals. Each cell needs the one to "
        f"its left and the one above. The {framed} cells of diagonal {chosen + 1} are marked: they can run together",
    )


def _draw_cell(axes: Axes, layer: int, step: int, is_chosen: bool) -> None:
    colour = COLOURS["forward"] if is_chosen else "white"
    corner = (step - SIDE / 2, layer - SIDE / 2)
    axes.add_patch(Rectangle(corner, SIDE, SIDE, facecolor=colour, edgecolor=INK, linewidth=0.9))
    ink = "white" if is_chosen else INK
    axes.text(step, layer, str(layer + step + 1), ha="center", va="center", fontsize=9, color=ink)


def _needs(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "linewidth": 0.8, "mutation_scale": 7, "shrinkA": 0, "shrinkB": 0, "color": INK}
    axes.annotate("", end, start, arrowprops=style)
