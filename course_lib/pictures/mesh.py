"""Which ranks talk to which: a row per replica, a column per stage."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from course_lib.pictures.palette import COLOURS, INK
from course_lib.pictures.picture import Picture

WIDTH, HEIGHT = 0.62, 0.5  # of a rank's box, in units of the table


def mesh(replicas: int, stages: int) -> Picture:
    """Draw replicas x stages ranks: messages along a row, sums of gradients within a column."""
    figure = Figure(figsize=(1.6 + 1.7 * stages, 1.2 + 0.85 * replicas), layout="constrained")
    axes = figure.subplots()
    arrow = {"arrowstyle": "<|-|>", "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
    for replica in range(replicas):
        for stage in range(stages):
            corner = (stage - WIDTH / 2, replica - HEIGHT / 2)
            box = FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.08", facecolor="white")
            box.set_edgecolor(INK)
            axes.add_patch(box)
            axes.text(stage, replica, f"rank {replica * stages + stage}", ha="center", va="center", color=INK)
            if stage:
                ends = (stage - 1 + WIDTH / 2, replica), (stage - WIDTH / 2, replica)
                axes.annotate("", ends[1], ends[0], arrowprops={**arrow, "color": COLOURS["forward"]})
            if replica:
                ends = (stage, replica - 1 + HEIGHT / 2), (stage, replica - HEIGHT / 2)
                axes.annotate("", ends[1], ends[0], arrowprops={**arrow, "color": COLOURS["communication"]})
    axes.set_xlim(-0.6, stages - 0.4)
    axes.set_ylim(replicas - 0.5, -0.5)
    axes.set_xticks(range(stages), [f"stage {stage}" for stage in range(stages)])
    axes.set_yticks(range(replicas), [f"replica {replica}" for replica in range(replicas)])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)
    handles = [
        Patch(color=COLOURS["forward"], label="activations, and their gradients back"),
        Patch(color=COLOURS["communication"], label="sum of the stage's gradients"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=1, frameon=False)
    words = f"{replicas} replicas of {stages} stages on {replicas * stages} ranks"
    return Picture(figure, f"Mesh of {words}: messages along each row, gradients summed in each column")
