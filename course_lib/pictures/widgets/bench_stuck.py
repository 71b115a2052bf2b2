"""A schedule on the bench that gets stuck: what never starts, why, and who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.pictures.widgets.svg import line, text
from course_lib.planning.costs import ActionCosts
from course_lib.planning.schedules import IllegalSchedule, Schedule, Waiting, check
from course_lib.planning.simulation import TimedAction, makespan


def after_the_end(schedule: Schedule, timed: Sequence[TimedAction], costs: ActionCosts) -> list[TimedAction]:
    """What never starts, drawn behind the point at which everything has stopped."""
    done = {(one.stage, one.action) for one in timed}
    placed = []
    for stage, actions in enumerate(schedule.stages):
        at = makespan(timed)
        for action in (one for one in actions if (stage, one) not in done):
            placed.append(TimedAction(stage, action, at, at + costs.of(action, stage, schedule)))
            at = placed[-1].end
    return placed


def stuck_line(x: float, top: float, bottom: float) -> str:
    """Where time stands still."""
    return line(x, top - 8, x, bottom, "dashed") + text(x + 4, top - 11, "from here on, everybody waits", "ink small")


def why_stuck(schedule: Schedule) -> str:
    """What is wrong with this schedule; nothing if it is legal."""
    try:
        check(schedule)
    except IllegalSchedule as reason:
        return str(reason)
    return ""


def who_waits(waiting: Sequence[Waiting], schedule: Schedule) -> str:
    """Who waits for whom, stage by stage."""
    said = []
    for one in waiting:
        stage, action = one.needs
        whose = "its own" if stage == one.stage else f"stage {stage}'s"
        said.append(f"stage {one.stage} with {schedule.label(one.action)} for {whose} {schedule.label(action)}")
    return f"Who waits: {'; '.join(said)}."
