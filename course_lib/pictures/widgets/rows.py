"""A pipeline schedule as rows of boxes: what the schedule explorer and the bench both draw."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.pictures.widgets.svg import CHARACTER, box, element, line, text
from course_lib.planning.schedules import Action
from course_lib.planning.simulation import NAMES, TimedAction

LEFT, WIDTH = 66, 560  # where time begins, and how wide all of it is
ROW, TALL = 34, 28  # from one stage to the next, and how tall its boxes are
RIGHT = LEFT + WIDTH + 14
INK_ON = {"F": "on-dark", "B": "on-light"}


def label_of(action: Action, chunks: int) -> str:
    """What stands in the box: the micro-batch and, where there are several, the chunk."""
    return action.label(chunks)[1:]


def action_box(
    action: Action, left: float, width: float, top: float, chunks: int, class_: str = "", **attributes: object
) -> str:
    """One action. `attributes` are those of the group."""
    label = action.label(chunks) if class_ else label_of(action, chunks)  # without its colour, say which kind it is
    shapes = [box(left + 0.5, top, max(1.0, width - 1), TALL, class_ or NAMES[action.kind], rx=2)]
    if len(label) * CHARACTER + 2 <= width:
        ink = "ink" if class_ else INK_ON[action.kind]
        shapes.append(text(left + width / 2, top + TALL / 2 + 4.5, label, ink, "middle", aria_hidden="true"))
    return element("g", *shapes, **attributes)


def row_names(stages: int, top: float) -> str:
    """stage 0, stage 1, ..."""
    return "".join(text(0, top + ROW * stage + TALL / 2 + 4.5, f"stage {stage}") for stage in range(stages))


def idle_rows(stages: int, top: float, width: float) -> str:
    """Grey, on which the work is drawn: what stays grey is the bubble."""
    return "".join(box(LEFT, top + ROW * stage, width, TALL, "idle") for stage in range(stages))


def held_bars(held: Sequence[float], whole: float, top: float) -> str:
    """How many micro-batches each stage holds at most, of the whole batch."""
    shapes = []
    for stage, count in enumerate(held):
        y = top + ROW * stage
        width = 60 * count / max(whole, 1)
        shapes += [box(RIGHT, y, width, TALL, "activations"), text(RIGHT + width + 5, y + 18.5, f"{count:.3g}")]
    return "".join([*shapes, text(RIGHT, top - 7, "held at most", "ink small")])


def plain_boxes(timed: Sequence[TimedAction], scale: float, top: float, chunks: int) -> str:
    """All actions, where they are in time. One path for each kind of work: thousands of boxes are drawn at once."""
    outlines: dict[str, list[str]] = {name: [] for name in NAMES.values()}
    labels = []
    for one in timed:
        x, y, width = LEFT + one.start * scale, top + ROW * one.stage, (one.end - one.start) * scale
        wide = max(0.5, width - 1)
        outlines[NAMES[one.action.kind]].append(f"M{x + 0.5:.1f} {y:.0f}h{wide:.1f}v{TALL}h-{wide:.1f}z")
        label = label_of(one.action, chunks)
        if len(label) * CHARACTER + 2 <= width:
            labels.append(text(x + width / 2, y + TALL / 2 + 4.5, label, INK_ON[one.action.kind], "middle"))
    paths = [element("path", d="".join(pieces), class_=name) for name, pieces in outlines.items()]
    return "".join([*paths, *labels])


def time_axis(longest: float, scale: float, y: float, words: str) -> str:
    """Ticks at round numbers, and what they count."""
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e9) if longest / step <= 12)
    shapes = []
    for number in range(int(longest / step) + 1):
        x = LEFT + number * step * scale
        shapes += [line(x, y, x, y + 5), text(x, y + 18, f"{number * step:.4g}", "ink small", "middle")]
    return "".join([*shapes, text(LEFT, y + 34, words, "ink small")])
