"""Choose a schedule and its sizes for the same batch, and see the timeline, the bubble and what each stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from course_lib.pictures.schedule_chart import LEFT, ROW, TALL, TOP, WIDTH, schedule
from course_lib.pictures.svg import Drawing, element
from course_lib.pictures.widgets.explorer import Explorer, choice, slider
from course_lib.planning.schedule import Schedule
from course_lib.planning.schedules import SCHEDULES, make_schedule
from course_lib.planning.simulation import NAMES, ActionCosts, TimedAction, simulate

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
        return replace(schedule(simulation), below=below, tips=pointed)


explore_schedules = ScheduleExplorer
