"""Choose a schedule and its sizes, for the same batch: the timeline, the bubble and what each stage holds."""

from __future__ import annotations

from course_lib.pictures.widgets import rows
from course_lib.pictures.widgets.explorer import Explorer, choice, slider
from course_lib.pictures.widgets.svg import Drawing
from course_lib.planning.costs import ActionCosts
from course_lib.planning.schedules import SCHEDULES, make_schedule
from course_lib.planning.simulation import simulate

TOP = 46


def explore_schedules() -> ScheduleExplorer:
    """Choose a schedule and its sizes, for the same batch: see the timeline, the bubble and what each stage holds."""
    return ScheduleExplorer()


class ScheduleExplorer(Explorer):
    """The costs are those of a whole batch: smaller pieces take less time each."""

    title = "Schedules of the same batch"

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
        scale = rows.WIDTH / simulation.makespan
        bottom = TOP + rows.ROW * stages
        kinds = {action.kind for row in schedule.stages for action in row}
        shapes = [
            rows.kinds_legend(kinds, rows.LEFT, 16),
            rows.row_names(stages, TOP),
            rows.idle_rows(stages, TOP, rows.WIDTH),
            rows.plain_boxes(simulation.timed, scale, TOP, (schedule.chunks, schedule.virtual)),
            rows.held_bars(held, TOP),
            rows.time_axis(simulation.makespan, scale, bottom, "time, if a forward pass of the whole batch takes 1"),
        ]
        parts = f" with {schedule.virtual} virtual stages each" if schedule.virtual > 1 else ""
        words = (
            f"Schedule {schedule.name} on {stages} {'stage' if stages == 1 else 'stages'}{parts}: "
            f"makespan {simulation.makespan:.4g}, bubble {simulation.bubble:.1%}; "
            f"held at most, of the batch: {', '.join(share.percent for share in held)}"
        )
        return Drawing("".join(shapes), rows.RIGHT + 100, bottom + 40, words)
