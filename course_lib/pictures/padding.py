"""What a batch contains: real steps, padding, and the steps whose output is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lib.data import Batch
from course_lib.pictures.picture import COLOURS, INK, Picture

GAP = 2  # white rows between two batches


def padding(panels: Mapping[str, Sequence[Batch]]) -> Picture:
    """Draw one panel for each named list of batches: a row per sequence, a column per step, and padding in gray.

    If only some valid steps count in the loss, dots mark them.
    """
    longest = max(batch.steps for batches in panels.values() for batch in batches)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, (name, batches) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _draw(axes, batches, longest)
        axes.set_title(f"{name}: {_share(batches):.0%} padding", loc="left", fontsize=10, color=INK)
    handles = [Patch(facecolor=COLOURS["forward"], label="steps of a sequence")]
    handles += [Patch(facecolor=COLOURS["idle"], label="padding")]
    if any(_marked(batch) for batches in panels.values() for batch in batches):
        handles += [Patch(facecolor=COLOURS["backward"], label="the step whose answer is read")]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
    shares = ", ".join(f"{name} {_share(batches):.0%}" for name, batches in panels.items())
    return Picture(figure, f"Sequences of a batch, one per row, and the padding behind them: {shares} of the cells")


def _draw(axes: Axes, batches: Sequence[Batch], longest: int) -> None:
    strips, dots, row = [], [], 0
    for batch in batches:
        valid = batch.valid.cpu().numpy().T
        strip = numpy.ones((len(valid) + GAP, longest, 3))
        strip[: len(valid), : batch.steps] = to_rgb(COLOURS["idle"])
        strip[: len(valid), : batch.steps][valid] = to_rgb(COLOURS["forward"])
        if _marked(batch):
            dots += [(step, row + sequence) for step, sequence in batch.mask.nonzero().tolist()]
        strips.append(strip)
        row += len(strip)
    axes.imshow(numpy.concatenate(strips)[:-GAP], aspect="auto", interpolation="nearest")
    if dots:
        axes.scatter(*zip(*dots, strict=True), s=22, color=COLOURS["backward"], edgecolor="white", linewidth=0.4)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("sequence", color=INK)
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)


def _marked(batch: Batch) -> bool:
    return bool((batch.mask != batch.valid).any())


def _share(batches: Sequence[Batch]) -> float:
    cells = sum(batch.steps * batch.sequences for batch in batches)
    return 1 - sum(int(batch.lengths.sum()) for batch in batches) / cells
