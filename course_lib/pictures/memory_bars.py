"""Memory as stacked bars: what is measured beside what the formula says."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from course_lib.lstm.memory import Memory
from course_lib.pictures.palette import INK, MEMORY
from course_lib.pictures.picture import Picture


def memory(bars: Mapping[str, Memory], budget: int | None = None) -> Picture:
    """One bar for each named `Memory`, cut into parameters, gradients, optimizer and activations.

    A dashed line marks the `budget`, in bytes, where one is given.
    """
    unit, size_of_unit = ("GiB", 2**30) if max(bar.total for bar in bars.values()) >= 2**33 else ("MiB", 2**20)
    figure = Figure(figsize=(8, 1.0 + 0.5 * len(bars)), layout="constrained")
    axes = figure.subplots()
    left = [0.0] * len(bars)
    for part, colour in MEMORY.items():
        sizes = [getattr(bar, part) / size_of_unit for bar in bars.values()]
        axes.barh(list(bars), sizes, left=left, color=colour, edgecolor="white", label=part)
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    if budget is not None:
        axes.axvline(budget / size_of_unit, color=INK, linestyle="--", linewidth=1)
        axes.annotate(" budget", (budget / size_of_unit, 1), xycoords=("data", "axes fraction"), va="bottom", color=INK)
    axes.invert_yaxis()
    axes.set_xlabel(unit, color=INK)
    figure.legend(loc="outside upper right", ncols=len(MEMORY), frameon=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    largest = {name: max(MEMORY, key=lambda part: getattr(bar, part)) for name, bar in bars.items()}
    words = "Memory bars: " + ", ".join(f"{name} (most is {part})" for name, part in largest.items())
    if budget is not None:
        over = [name for name, bar in bars.items() if bar.total > budget]
        words += f"; above the budget of {budget / size_of_unit:.3g} {unit}: {', '.join(over) or 'none'}"
    return Picture(figure, words)
