"""A pipeline schedule, simulated or measured: one row per stage, one box per action, and what each stage holds.

`explore_schedules` shows any schedule of any size, and the bench draws its rows with the same functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from course_lib.drawing.explorer import Explorer, choice, slider
from course_lib.drawing.svg import DARKEST, SHEET, Drawing, box, breadth, element, legend, line, text
from course_lib.pipeline.actions import Action, Held
from course_lib.pipeline.named_schedules import SCHEDULES, make_schedule
from course_lib.pipeline.schedule import Schedule
from course_lib.pipeline.simulation import (
    NAMES,
    ActionCosts,
    Simulation,
    TimedAction,
    bubble,
    makespan,
    peak_share,
    pieces_of,
    simulate,
)
from course_lib.runtime.words import counted

LEFT, WIDTH = 66, 514  # the left edge and the width of the time axis
RIGHT = LEFT + WIDTH + 14  # the left edge of the bars of what is held
TOP, ROW, TALL = 64, 34, 28  # the first row, the distance between two rows, and the height of a box
COST = "units"
DARKER = "; darker boxes: a later virtual stage"
CLASSES = {kind: name.replace(" ", "-") for kind, name in NAMES.items()}
MOST_TIPS = 600  # with more boxes, each is too narrow to point at


def draw_schedule(
    actions: Schedule | Simulation | Sequence[TimedAction],
    *,
    name: str = "",
    seconds: bool | None = None,
    unit: str = COST,
    idle: str = "idle",
    held: bool = True,
) -> Drawing:
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
    if not actions:
        return Drawing("", SHEET, ROW, "Schedule with no actions: give a Simulation, or what measured() returned")
    scale = 1.0
    if seconds is not False:
        unit, scale = ("seconds", 1.0) if makespan(actions) >= 2 else ("milliseconds", 1000.0)
    start = min(step.start for step in actions)
    timed = [replace(one, start=(one.start - start) * scale, end=(one.end - start) * scale) for one in actions]
    shares, (_, chunks, virtual) = peak_share(timed), pieces_of(timed)
    row, stages = "device" if virtual > 1 else "stage", len(shares)
    facts = f"makespan {makespan(timed):.4g}{'' if unit == COST else ' ' + unit}, bubble {bubble(timed):.1%}"
    paced = any(one.paced for one in timed)
    axis = f"time in {unit}" + " (paced: actions sleep to a fixed length)" * paced + DARKER * (virtual > 1)
    width = (WIDTH if held else SHEET - LEFT) / (makespan(timed) or 1)
    bottom = TOP + ROW * stages
    shapes = [
        kinds_legend(timed, LEFT, 16, idle),
        text(LEFT, 44, f"{name}: {facts}" if name else facts, "ink strong"),
        rows(stages, TOP, width * makespan(timed), row),
        plain_boxes(timed, width, TOP, (chunks, virtual)),
        held_bars(shares, TOP) if held else "",
        time_axis(makespan(timed), width, bottom, axis),
    ]
    words = counted(stages, row) + (f" with {virtual} virtual stages each" if virtual > 1 else "")
    words = f"{('Paced schedule ' if paced else 'Schedule ') + name}".strip() + f" on {words}: {facts}"
    if held:
        words += f"; held at most, of the batch: {', '.join(share.percent for share in shares)}"
    return Drawing("".join(shapes), SHEET, bottom + 40, words)


def kinds_legend(timed: Sequence[TimedAction], x: float, y: float, idle: str = "idle") -> str:
    """Draw the legend of the kinds of actions that there are, and of gray."""
    pieces = {kind: {(one.stage, one.action.piece) for one in timed if one.action.kind == kind} for kind in NAMES}
    words = {CLASSES[kind]: NAMES[kind] for kind in NAMES if pieces[kind]}
    if pieces["W"]:
        words["backward"] = "backward (inputs, or both)" if pieces["B"] - pieces["W"] else "backward (inputs)"
    return legend([*words.items(), ("idle", idle)], x, y)


def rows(stages: int, top: float, width: float, row: str = "stage") -> str:
    """Draw the gray background of the rows, and their labels. The bubble is whatever stays gray."""
    tops = [(stage, top + ROW * stage) for stage in range(stages)]
    names = [text(0, y + TALL / 2 + 4.5, f"{row} {stage}") for stage, y in tops]
    return "".join([*names, *(box(LEFT, y, width, TALL, "idle") for _, y in tops)])


def look(action: Action) -> tuple[str, str]:
    """Return the class of a box, darker for a later virtual stage, and the class of its label."""
    shade = f" shade{min(action.virtual, DARKEST)}" if action.virtual else ""
    return CLASSES[action.kind] + shade, "on-dark" if action.virtual or action.kind in "FW" else "on-light"


def fitting_label(action: Action, width: float, chunks: int, virtual: int, kind: bool = False) -> str:
    """Return the micro-batch and, if there are several, the chunk and the virtual stage, if they fit."""
    for label in (action.label(chunks, virtual), action.label(chunks)):
        shown = label if kind else label[1:]
        if breadth(shown) + 1.5 <= width:
            return shown
    return ""


def plain_boxes(timed: Sequence[TimedAction], scale: float, top: float, sizes: tuple[int, int]) -> str:
    """Draw all actions at their times, with one path per kind of work, because there may be thousands of boxes.

    `sizes` are the schedule's chunks and virtual stages.
    """
    outlines: dict[str, list[str]] = defaultdict(list)
    labels = []
    for step in timed:
        x, y, width = LEFT + step.start * scale, top + ROW * step.stage, (step.end - step.start) * scale
        gap = 1.0 if width > 5 else 0.0  # narrow boxes touch, because gaps would make them look pale
        x, wide = x + gap / 2, width - gap
        class_, ink = look(step.action)
        outlines[class_].append(f"M{x:.1f} {y:.0f}h{wide:.1f}v{TALL}h-{wide:.1f}z")
        if label := fitting_label(step.action, width, *sizes):
            labels.append(text(x + wide / 2, y + TALL / 2 + 4.5, label, ink, "middle"))
    paths = [element("path", d="".join(commands), class_=name) for name, commands in outlines.items()]
    return "".join([*paths, *labels])


def held_bars(held: Collection[Held], top: float) -> str:
    """Draw the largest share of the batch that each stage holds: activations, and tensors for weight gradients."""
    shapes = [text(SHEET, top - 7, "held of the batch", "ink", "end")]
    for stage, share in enumerate(held):
        y = top + ROW * stage
        activations, for_weights = 58 * share.activations, 58 * share.for_weights
        shapes += [box(RIGHT, y, activations, TALL, "activations")]
        shapes += [box(RIGHT + activations, y, for_weights, TALL, CLASSES["W"])]
        shapes.append(text(RIGHT + activations + for_weights + 5, y + 18.5, share.percent))
    return "".join(shapes)


def time_axis(longest: float, scale: float, y: float, words: str) -> str:
    """Draw ticks at round numbers, and the axis label."""
    steps = (digit * 10.0**power for power in range(-1, 9) for digit in (1, 2, 5))
    step = next((step for step in steps if longest / step <= 12), 1e9)
    shapes = []
    for number in range(int(longest / step) + 1):
        x = LEFT + number * step * scale
        shapes += [line(x, y, x, y + 5), text(x, y + 18, f"{number * step:.4g}", "ink", "middle")]
    return "".join([*shapes, text(LEFT, y + 36, words)])


def tips(timed: Sequence[TimedAction], scale: float, top: float, sizes: tuple[int, int]) -> str:
    """Return an invisible box over each action. Its tooltip shows the action, and when it begins and ends."""
    shapes = []
    for step in timed if len(timed) <= MOST_TIPS else ():
        words = f"stage {step.stage}: {NAMES[step.action.kind]} {step.action.label(*sizes)}"
        title = element("title", f"{words}, from {step.start:.4g} to {step.end:.4g}")
        left, width = LEFT + step.start * scale, (step.end - step.start) * scale
        place = {"x": left, "y": top + ROW * step.stage, "width": width, "height": TALL}
        name = f"{step.stage}:{step.action.label(*sizes)}"
        shapes.append(element("rect", title, **place, class_="tip", data_of=name))
    return "".join(shapes)


def written(schedule: Schedule) -> str:
    """Return the schedule as text for `Schedule.of`, a line per stage. Each action names the box that it highlights."""
    rows = []
    for stage, actions in enumerate(schedule.stages):
        labels = [schedule.label(action) for action in actions]
        rows.append(" ".join(element("span", label, data_of=f"{stage}:{label}") for label in labels))
    caption = element("p", "The same as text, a line per stage, as <code>Schedule.of</code> reads it")
    return element("div", caption, element("pre", "\n".join(rows)), class_="written")


class ScheduleExplorer(Explorer):
    """Choose a schedule and its sizes for the same batch: see the timeline, the bubble and what each stage holds.

    The unit of time is a forward pass of the whole batch, so smaller pieces take less time each.
    """

    title = "Schedules of the same batch"
    help = (
        "A forward pass of the whole batch takes 1. Point at an action in the picture or in the text below it, and "
        "both light up."
    )

    def __init__(self) -> None:
        super().__init__(
            [
                choice("schedule", "schedule", list(SCHEDULES), "1f1b"),
                slider("stages", "stages", range(1, 9), 4),
                slider("micro_batches", "micro-batches", range(1, 17), 4),
                slider("chunks", "time chunks", range(1, 9), 1),
                choice("recompute", "recompute", ["no", "yes"], "no"),
                slider("backward", "backward / forward", [0.5, 1, 1.5, 2, 2.5, 3], 2),
                slider("link", "link / forward", [number / 50 for number in range(11)], 0),
            ]
        )

    def draw(self) -> Drawing:
        chosen = self.values
        sizes = (chosen["stages"], chosen["micro_batches"], chosen["chunks"])
        made = make_schedule(chosen["schedule"], *sizes, recompute=chosen["recompute"] == "yes")
        simulation = simulate(made, ActionCosts(1.0, chosen["backward"], chosen["link"]).split_over(made))
        below = written(made) if len(simulation.timed) <= MOST_TIPS else ""
        pointed = tips(simulation.timed, WIDTH / simulation.makespan, TOP, (made.chunks, made.virtual))
        return replace(draw_schedule(simulation), below=below, tips=pointed)


explore_schedules = ScheduleExplorer
