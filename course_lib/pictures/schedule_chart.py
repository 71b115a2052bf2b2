"""A pipeline schedule, simulated or measured: one row per stage, one box per action, and what each stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from course_lib.pictures.palette import COLOURS, INK, MEMORY
from course_lib.pictures.picture import Picture
from course_lib.pictures.timeline import rank_axes, row_axes, time_unit
from course_lib.planning.schedules import Schedule
from course_lib.planning.simulation import NAMES, Simulation, TimedAction, bubble, makespan, peak, simulate

WIDTH = 9.0  # of the picture, in inches
SPACE = 0.7  # the share of that width in which the actions are drawn
CHARACTER = 0.068  # how wide one character of a label is, with its share of the margin, in inches
COST = "units of the costs"
TEXT = {"F": "white", "B": "black"}


def schedule(
    actions: Schedule | Simulation | Sequence[TimedAction], *, name: str = "", seconds: bool | None = None
) -> Picture:
    """Draw what each stage does when, stage 0 on top, and beside it the most activations that each stage holds.

    It takes what `simulate` or `measured` returned; a `Schedule` is simulated with every action taking 1.

    A box bears the number of its micro-batch and, where there are several, of its chunk (3.2), if there is room for it.
    `seconds` says that times are seconds; without it those of a `Simulation` are in the unit of its costs.
    """
    if isinstance(actions, Schedule):
        actions = simulate(actions)
    if isinstance(actions, Simulation):
        actions, name, seconds = actions.timed, name or actions.schedule.name, bool(seconds)
    timed, unit = _from_zero(actions, in_seconds=seconds is not False)
    stages = max(1, len(peak(timed)))
    figure = Figure(figsize=(WIDTH, 1.4 + 0.38 * stages), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(7, 1), sharey=True)
    paced = any(one.paced for one in timed)
    rank_axes(left, stages, unit, paced, rows="stage")
    _draw_actions(left, timed, stages)
    _draw_peaks(right, timed)
    facts = f"makespan {makespan(timed):.4g}{'' if unit == COST else ' ' + unit}, bubble {bubble(timed):.1%}"
    left.set_title(f"{name}: {facts}" if name else facts, loc="left", fontsize=10, color=INK)
    handles = [Patch(facecolor=COLOURS[meaning], label=meaning) for meaning in (*NAMES.values(), "idle")]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False)
    return Picture(figure, _describe(timed, name, facts, paced))


def _from_zero(actions: Sequence[TimedAction], in_seconds: bool) -> tuple[list[TimedAction], str]:
    """The actions with time counted from the first one, in a unit that reads well, and the unit."""
    first = min((one.start for one in actions), default=0.0)
    unit, scale = time_unit(makespan(actions)) if in_seconds else (COST, 1.0)
    moved = [replace(one, start=(one.start - first) * scale, end=(one.end - first) * scale) for one in actions]
    return moved, unit


def _draw_actions(axes: Axes, timed: Sequence[TimedAction], stages: int) -> None:
    whole, chunks = makespan(timed), _chunks(timed)
    for stage in range(stages):
        axes.broken_barh([(0, whole)], (stage - 0.38, 0.76), facecolor=COLOURS["idle"])
        for kind, name in NAMES.items():
            own = [one for one in timed if (one.stage, one.action.kind) == (stage, kind)]
            boxes = [(one.start, one.end - one.start) for one in own]
            axes.broken_barh(boxes, (stage - 0.38, 0.76), facecolor=COLOURS[name], edgecolor="white", linewidth=0.6)
    for one in timed:
        _name_box(axes, one, chunks, (one.end - one.start) / (whole or 1) * WIDTH * SPACE)
    axes.set_xlim(0, whole or 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=whole >= 5, steps=[1, 2, 5, 10]))


def _name_box(axes: Axes, one: TimedAction, chunks: int, inches: float) -> None:
    label = one.action.label(chunks)[1:]
    if len(label) * CHARACTER <= inches:
        place, size = ((one.start + one.end) / 2, one.stage), 8 if len(label) < 3 else 7
        axes.text(*place, label, ha="center", va="center_baseline", fontsize=size, color=TEXT[one.action.kind])


def _draw_peaks(axes: Axes, timed: Sequence[TimedAction]) -> None:
    held = [count / _chunks(timed) for count in peak(timed)]
    bars = axes.barh(range(len(held)), held, height=0.76, color=MEMORY["activations"])
    axes.bar_label(bars, [f"{count:.3g}" for count in held], padding=3, fontsize=8, color=INK)
    whole_batch = 1 + max((one.action.micro_batch for one in timed), default=0)
    axes.set_xlim(0, 1.45 * whole_batch)  # so that schedules of the same batch can be compared by eye
    axes.set_xticks([])
    axes.set_xlabel("micro-batches\nheld at most", color=INK)
    row_axes(axes, len(held) or 1, "stage")
    axes.tick_params(axis="y", labelleft=False)


def _chunks(timed: Sequence[TimedAction]) -> int:
    return 1 + max((one.action.chunk for one in timed), default=0)


def _describe(timed: Sequence[TimedAction], name: str, facts: str, paced: bool) -> str:
    if not timed:
        return "Schedule with no actions: give a Simulation, or what measured() returned"
    stages = len(peak(timed))
    kind = ("Paced schedule " if paced else "Schedule ") + name
    held = ", ".join(f"{count / _chunks(timed):.3g}" for count in peak(timed))
    where = f"{stages} {'stage' if stages == 1 else 'stages'}"
    return f"{kind.strip()} on {where}: {facts}; micro-batches held at most: {held}"
