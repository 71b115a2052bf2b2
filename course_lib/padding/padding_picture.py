"""Batches drawn as a row of steps for each sequence, with the padding in gray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy

from course_lib.core.batch import Batch
from course_lib.drawing.picture import COLORS, INK, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAP = 2  # white rows between two batches


def draw_padding(panels: Mapping[str, Sequence[Batch]]) -> Picture:
    """Draw one panel for each named list of batches: a row per sequence, a column per step, and padding in gray.

    If only some valid steps count in the loss, dots mark them, and the titles leave out the share of padding.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    every_batch = [batch for batches in panels.values() for batch in batches]
    longest = max(batch.steps for batch in every_batch)
    dotted = any(bool((batch.mask != batch.valid).any()) for batch in every_batch)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    facts = {}
    for axes, (name, batches) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _draw_batches(axes, batches, longest, dotted)
        cells = sum(batch.steps * batch.sequences for batch in batches)
        share = f"{1 - sum(int(batch.lengths.sum()) for batch in batches) / cells:.0%}"
        axes.set_title(name if dotted else f"{name}: {share} padding", loc="left", color=INK)
        marks = [(step, batch.lengths[row] - 1) for batch in batches for step, row in batch.mask.nonzero().tolist()]
        at_their_ends = f"{sum(step == int(end) for step, end in marks)} of {len(marks)}"
        facts[name] = at_their_ends if dotted else share
    handles = [Patch(facecolor=COLORS["forward"], label="steps of a sequence")]
    handles += [Patch(facecolor=COLORS["idle"], label="padding")]
    if dotted:
        handles += [Patch(facecolor=COLORS["backward"], label="the step whose answer is read")]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
    words = ", ".join(f"{name} {fact}" for name, fact in facts.items())
    if dotted:
        return Picture(figure, f"Sequences of a batch, a row each, and where they are read. At their ends: {words}")
    return Picture(figure, f"Sequences of a batch, one per row, and the padding behind them: {words} of the cells")


def _draw_batches(axes: Axes, batches: Sequence[Batch], longest: int, dotted: bool) -> None:
    from matplotlib.colors import to_rgb

    strips, dots, row = [], [], 0
    for batch in batches:
        valid = batch.valid.cpu().numpy().T
        strip = numpy.ones((len(valid) + GAP, longest, 3))
        strip[: len(valid), : batch.steps] = to_rgb(COLORS["idle"])
        strip[: len(valid), : batch.steps][valid] = to_rgb(COLORS["forward"])
        if dotted and bool((batch.mask != batch.valid).any()):
            dots += [(step, row + sequence) for step, sequence in batch.mask.nonzero().tolist()]
        strips.append(strip)
        row += len(strip)
    axes.imshow(numpy.concatenate(strips)[:-GAP], aspect="auto", interpolation="nearest")
    if dots:
        axes.scatter(*zip(*dots, strict=True), s=22, color=COLORS["backward"], edgecolor="white", linewidth=0.4)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("sequence", color=INK)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
