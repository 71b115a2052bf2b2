"""Choose a schedule and its sizes for the same batch, and see the timeline, the bubble and what each stage holds.

The bench uses these functions to draw its rows, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from course_lib.pictures.widgets.explorer import Explorer, choice, slider
from course_lib.pictures.widgets.svg import DARKEST, Drawing, advance, box, element, legend, line, text
from course_lib.planning.actions import Action, Held
from course_lib.planning.schedule import Schedule
from course_lib.planning.schedules import SCHEDULES, make_schedule
from course_lib.planning.simulation import NAMES, ActionCosts, TimedAction, simulate

LEFT, WIDTH = 66, 560  # the left edge and the width of the time axis
ROW, TALL = 34, 28  # the distance between two stages, and the height of a box
RIGHT = LEFT + WIDTH + 14
BARS = 100  # the width of the bars, with their percentages
INK_ON = {"F": "on-dark", "B": "on-light", "W": "on-dark", "R": "on-light"}
CLASSES = {kind: name.replace(" ", "-") for kind, name in NAMES.items()}


def kinds_legend(kinds: Collection[str], x: float, y: float) -> str:
    """Draw the legend for these kinds of actions, and always for forward and backward."""
    words = {CLASSES[kind]: NAMES[kind] for kind in NAMES if kind in {*kinds, "F", "B"}}
    return legend([*words.items(), ("idle", "idle")], x, y)


def fitting_label(action: Action, width: float, chunks: int, virtual: int, kind: bool = False) -> str:
    """Return the micro-batch and, if there are several, the chunk and the virtual stage, if they fit."""
    for label in (action.label(chunks, virtual), action.label(chunks)):
        shown = label if kind else label[1:]
        if sum(map(advance, shown)) + 2 <= width:
            return shown
    return ""


def action_box(
    action: Action,
    left: float,
    width: float,
    top: float,
    sizes: tuple[int, int],
    class_: str = "",
    **attributes: object,
) -> str:
    """Draw one action. `sizes` are the schedule's chunks and virtual stages; the SVG group gets the `attributes`."""
    shapes = [box(left + 0.5, top, max(1.0, width - 1), TALL, class_ or color_class(action), rx=2)]
    label = fitting_label(action, width, *sizes, kind=bool(class_))  # without a color, the label shows the kind
    if label:
        ink = "ink" if class_ else ink_on(action)
        shapes.append(text(left + width / 2, top + TALL / 2 + 4.5, label, ink, "middle", aria_hidden="true"))
    return element("g", *shapes, **attributes)


def color_class(action: Action) -> str:
    """Return the class of a box: its kind of work, and a darker shade for a later virtual stage."""
    shade = f" shade{min(action.virtual, DARKEST)}" if action.virtual else ""
    return CLASSES[action.kind] + shade


def ink_on(action: Action) -> str:
    """Return the class of a box's label."""
    return "on-dark" if action.virtual else INK_ON[action.kind]


def row_names(stages: int, top: float) -> str:
    """Draw the row labels: stage 0, stage 1, ..."""
    return "".join(text(0, top + ROW * stage + TALL / 2 + 4.5, f"stage {stage}") for stage in range(stages))


def idle_rows(stages: int, top: float, width: float) -> str:
    """Draw the gray background of the rows. The bubble is whatever stays gray."""
    return "".join(box(LEFT, top + ROW * stage, width, TALL, "idle") for stage in range(stages))


def held_bars(held: Sequence[Held], top: float) -> str:
    """Draw the largest share of the batch that each stage holds: activations, and tensors for weight gradients."""
    shapes = []
    for stage, share in enumerate(held):
        y = top + ROW * stage
        activations, for_weights = 60 * share.activations, 60 * share.for_weights
        shapes += [box(RIGHT, y, activations, TALL, "activations")]
        shapes += [box(RIGHT + activations, y, for_weights, TALL, CLASSES["W"])]
        shapes.append(text(RIGHT + activations + for_weights + 5, y + 18.5, share.percent))
    return "".join([*shapes, text(RIGHT + BARS, top - 7, "held of the batch", "ink small", "end")])


def plain_boxes(timed: Sequence[TimedAction], scale: float, top: float, sizes: tuple[int, int]) -> str:
    """Draw all actions at their times, with one path per kind of work, because there may be thousands of boxes."""
    outlines: dict[str, list[str]] = defaultdict(list)
    labels = []
    for step in timed:
        x, y, width = LEFT + step.start * scale, top + ROW * step.stage, (step.end - step.start) * scale
        gap = 1.0 if width > 5 else 0.0  # narrow boxes touch, because gaps would make them look pale
        x, wide = x + gap / 2, width - gap
        outlines[color_class(step.action)].append(f"M{x:.1f} {y:.0f}h{wide:.1f}v{TALL}h-{wide:.1f}z")
        label = fitting_label(step.action, width, *sizes)
        if label:
            labels.append(text(x + wide / 2, y + TALL / 2 + 4.5, label, ink_on(step.action), "middle"))
    paths = [element("path", d="".join(commands), class_=name) for name, commands in outlines.items()]
    return "".join([*paths, *labels])


MOST_TIPS = 600  # with more boxes, each is too narrow to point at


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


def time_axis(longest: float, scale: float, y: float, words: str) -> str:
    """Draw ticks at round numbers, and the axis label."""
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e9) if longest / step <= 12)
    shapes = []
    for number in range(int(longest / step) + 1):
        x = LEFT + number * step * scale
        shapes += [line(x, y, x, y + 5), text(x, y + 18, f"{number * step:.4g}", "ink small", "middle")]
    return "".join([*shapes, text(LEFT, y + 34, words, "ink small")])


def written(schedule: Schedule) -> str:
    """Return the schedule as text for `Schedule.of`, a line per stage. Each action names the box that it highlights."""
    rows = []
    for stage, actions in enumerate(schedule.stages):
        labels = [schedule.label(action) for action in actions]
        rows.append(" ".join(element("span", label, data_of=f"{stage}:{label}") for label in labels))
    caption = element("p", "The same as text, a line per stage, as <code>Schedule.of</code> reads it")
    return element("div", caption, element("pre", "\n".join(rows)), class_="written")


TOP = 46
UNIT = "time, if a forward pass of the whole batch takes 1"
DARKER = "; darker boxes: a later virtual stage"


def explore_schedules() -> ScheduleExplorer:
    """Choose a schedule and its sizes for the same batch: see the timeline, the bubble and what each stage holds."""
    return ScheduleExplorer()


class ScheduleExplorer(Explorer):
    """The costs are for the whole batch, so smaller pieces take less time each."""

    title = "Schedules of the same batch"
    help = "Point at an action in the picture or in the text below it, and both light up."

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
        schedule = make_schedule(chosen["schedule"], *sizes, recompute=chosen["recompute"] == "yes")
        simulation = simulate(schedule, ActionCosts(1.0, chosen["backward"], chosen["link"]).split_over(schedule))
        stages, held = chosen["stages"], simulation.peak_share
        scale = WIDTH / simulation.makespan
        bottom, parts = TOP + ROW * stages, (schedule.chunks, schedule.virtual)
        kinds = {action.kind for row in schedule.stages for action in row}
        shapes = [
            kinds_legend(kinds, LEFT, 16),
            row_names(stages, TOP),
            idle_rows(stages, TOP, WIDTH),
            plain_boxes(simulation.timed, scale, TOP, parts),
            held_bars(held, TOP),
            time_axis(simulation.makespan, scale, bottom, UNIT + (DARKER if schedule.virtual > 1 else "")),
        ]
        suffix = f" with {schedule.virtual} virtual stages each" if schedule.virtual > 1 else ""
        words = (
            f"Schedule {schedule.name} on {stages} {'stage' if stages == 1 else 'stages'}{suffix}: "
            f"makespan {simulation.makespan:.4g}, bubble {simulation.bubble:.1%}; "
            f"held at most, of the batch: {', '.join(share.percent for share in held)}"
        )
        below = written(schedule) if len(simulation.timed) <= MOST_TIPS else ""
        pointed = tips(simulation.timed, scale, TOP, parts)
        return Drawing("".join(shapes), RIGHT + BARS, bottom + 40, words, below, tips=pointed)
