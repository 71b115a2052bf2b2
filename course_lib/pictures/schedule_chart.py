"""A pipeline schedule, simulated or measured: one row per stage, one box per action, and what each stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from course_lib.pictures.picture import COLORS, INK, MEMORY, Picture, shaded
from course_lib.pictures.timeline import rank_axes, row_axes, time_unit
from course_lib.planning.schedule import Schedule
from course_lib.planning.simulation import (
    NAMES,
    Simulation,
    TimedAction,
    bubble,
    makespan,
    peak_share,
    pieces_of,
    simulate,
)

WIDTH = 9.0  # the picture's width in inches
SPACE = 0.68  # the share of that width used for the actions
TOUCHING = 0.13  # inches; in narrower boxes, the numbers of neighbors would touch
CHARACTER = 0.11  # the width in inches of a label's character, including its share of the margin
TALL = 0.76  # the height of a box; a row is 1
COST = "units"
TEXT = {"F": "white", "B": "black", "W": "white", "R": "black"}


def schedule(
    actions: Schedule | Simulation | Sequence[TimedAction],
    *,
    name: str = "",
    seconds: bool | None = None,
    unit: str = COST,
    idle: str = "idle",
    held: bool = True,
) -> Picture:
    """Draw the actions of each stage or device over time, the first on top, and next to them the most that each holds.

    `actions` is the result of `simulate` or `measured`; a `Schedule` is simulated with every action taking 1.

    If there is room, a box shows the number of its micro-batch and, if there are several, of its chunk (3.2) and its
    virtual stage (3v1). The later a virtual stage, the darker its boxes.

    With `seconds`, times are in seconds; without it, the times of a `Simulation` are in the unit of its costs. For
    other units, give `seconds=False` and a `unit`. `idle` is the legend's word for gray. `held=False` leaves out the
    bars.
    """
    if isinstance(actions, Schedule):
        actions = simulate(actions)
    if isinstance(actions, Simulation):
        actions, name, seconds = actions.timed, name or actions.schedule.name, bool(seconds)
    timed, unit = _from_zero(actions, "" if seconds is not False else unit)
    stages = max(1, len(peak_share(timed)))
    figure = Figure(figsize=(WIDTH, 1.4 + 0.38 * stages), layout="constrained")
    left, *bars = figure.subplots(1, 1 + held, width_ratios=(6, 1)[: 1 + held], sharey=True, squeeze=False)[0]
    paced = any(box.paced for box in timed)
    virtual = pieces_of(timed)[2]
    rank_axes(left, stages, unit, paced, rows=_row(virtual), sleeping="actions")
    if virtual > 1:
        left.set_xlabel(f"{left.get_xlabel()}; second shade: a later virtual stage", color=INK)
    _draw_actions(left, timed, stages)
    for right in bars:
        _draw_peaks(right, timed)
    facts = f"makespan {makespan(timed):.4g}{'' if unit == COST else ' ' + unit}, bubble {bubble(timed):.1%}"
    left.set_title(f"{name}: {facts}" if name else facts, loc="left", color=INK)
    handles = [Patch(facecolor=COLORS[meaning], label=words) for meaning, words in _meanings(timed, idle).items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False)
    return Picture(figure, _describe(timed, name, facts, paced, held))


def _from_zero(actions: Sequence[TimedAction], own_unit: str) -> tuple[list[TimedAction], str]:
    """Return the actions with times that start at 0, in `own_unit`, or else in seconds or milliseconds."""
    start = min((box.start for box in actions), default=0.0)
    unit, scale = (own_unit, 1.0) if own_unit else time_unit(makespan(actions))
    moved = [replace(box, start=(box.start - start) * scale, end=(box.end - start) * scale) for box in actions]
    return moved, unit


def _row(virtual: int) -> str:
    """Return the name of a row: a stage, or a device if it has several virtual stages."""
    return "device" if virtual > 1 else "stage"


def _meanings(timed: Sequence[TimedAction], idle: str) -> dict[str, str]:
    """Return the colors that the picture needs, and what they mean."""
    pieces = {kind: {(box.stage, box.action.piece) for box in timed if box.action.kind == kind} for kind in NAMES}
    words = {NAMES[kind]: NAMES[kind] for kind in NAMES if pieces[kind]}
    split = "backward (inputs, or both)" if pieces["B"] - pieces["W"] else "backward (inputs)"
    return words | ({"backward": split} if pieces["W"] else {}) | {"idle": idle}


def _draw_actions(axes: Axes, timed: Sequence[TimedAction], stages: int) -> None:
    duration = makespan(timed)
    _, chunks, virtual = pieces_of(timed)
    for stage in range(stages):
        axes.broken_barh([(0, duration)], (stage - TALL / 2, TALL), facecolor=COLORS["idle"])
        for (kind, name), number in product(NAMES.items(), range(virtual)):
            meant = (stage, kind, number)
            boxes = [box for box in timed if (box.stage, box.action.kind, box.action.virtual) == meant]
            color = shaded(COLORS[name], number)
            _draw_boxes(axes, boxes, stage - TALL / 2, TALL, facecolor=color, edgecolor="white", linewidth=0.6)
    for box in timed:
        _name_box(axes, box, chunks, virtual, (box.end - box.start) / (duration or 1) * WIDTH * SPACE)
    axes.set_xlim(0, duration or 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=duration >= 5, steps=[1, 2, 5, 10]))


def _draw_boxes(axes: Axes, timed: Sequence[TimedAction], top: float, tall: float, **look: Any) -> None:
    if timed:
        axes.broken_barh([(box.start, box.end - box.start) for box in timed], (top, tall), **look)


def _name_box(axes: Axes, box: TimedAction, chunks: int, virtual: int, inches: float) -> None:
    """Write the piece into its box. If boxes are so narrow that numbers would touch, write only micro-batch 0."""
    if inches < TOUCHING and box.action.micro_batch:
        return
    for label in (box.action.label(chunks, virtual)[1:], box.action.label(chunks)[1:]):
        if (len(label) - label.count(".") / 2) * CHARACTER <= inches:
            color = "white" if box.action.virtual else TEXT[box.action.kind]
            middle = (box.start + box.end) / 2
            axes.text(middle, box.stage, label, ha="center", va="center_baseline", color=color)
            return


def _draw_peaks(axes: Axes, timed: Sequence[TimedAction]) -> None:
    held = peak_share(timed)
    activations = [share.activations for share in held]
    axes.barh(range(len(held)), activations, height=TALL, color=MEMORY["activations"])
    waiting = [share.for_weights for share in held]
    color = COLORS["weight gradients"]
    bars = axes.barh(range(len(held)), waiting, left=activations, height=TALL, color=color)
    axes.bar_label(bars, [share.percent for share in held], padding=3, color=INK)
    axes.set_xlim(0, 1.6)  # a fixed range, so that you can compare schedules of the same batch
    axes.set_xticks([])
    axes.set_xlabel("held at most,\nof the batch", color=INK)
    row_axes(axes, len(held) or 1, _row(pieces_of(timed)[2]))
    axes.tick_params(axis="y", labelleft=False)


def _describe(timed: Sequence[TimedAction], name: str, facts: str, paced: bool, with_peaks: bool) -> str:
    if not timed:
        return "Schedule with no actions: give a Simulation, or what measured() returned"
    held = peak_share(timed)
    stages, virtual = len(held), pieces_of(timed)[2]
    kind = ("Paced schedule " if paced else "Schedule ") + name
    stages_in_words = f"{stages} {_row(virtual)}{'' if stages == 1 else 's'}"
    stages_in_words += f" with {virtual} virtual stages each" if virtual > 1 else ""
    shares = ", ".join(share.percent for share in held)
    peaks = f"; held at most, of the batch: {shares}" if with_peaks else ""
    return f"{kind.strip()} on {stages_in_words}: {facts}{peaks}"
