"""The schedule bench: put the actions of every stage in any order, and see the effect immediately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from course_lib.pictures import schedule_chart as chart
from course_lib.pictures.svg import SHEET, Drawing, box, element, line, text
from course_lib.pictures.widgets.bench_results import (
    PACE,
    better_schedule,
    bound_of,
    comparison,
    goal,
    named_schedules,
    one_step,
    score_table,
    why_stuck,
)
from course_lib.pictures.widgets.explorer import Button, Explorer, choice, slider, whole_number
from course_lib.pictures.widgets.schedules import written
from course_lib.planning.actions import Action, IllegalSchedule, fullest, held_after_each
from course_lib.planning.schedule import Schedule, check
from course_lib.planning.schedules import SCHEDULES, make_schedule
from course_lib.planning.simulation import (
    NAMES,
    ActionCosts,
    Simulation,
    TimedAction,
    Waiting,
    makespan,
    measured,
    simulate_until_stuck,
)

TOP = 48
SIZES = ("stages", "micro_batches", "chunks")
GAP = 74  # between the simulated rows and the measured ones


def schedule_bench(stages: int = 3, micro_batches: int = 4, chunks: int = 1, start: str = "naive") -> ScheduleBench:
    """Build a schedule by moving its actions. See deadlocks, bubble and memory as you go, and run it on real ranks."""
    return ScheduleBench(stages, micro_batches, chunks, start)


class ScheduleBench(Explorer):
    """A row of movable actions per stage. `bench.schedule` is the schedule you have built."""

    title = "The schedule bench"
    help = (
        "Drag an action, with the mouse or a finger, to another spot in its row. With the keyboard: Tab to the rows, "
        "arrow keys go from action to action, Shift and an arrow key move it earlier or later (or pick it up with "
        "Space, and then arrow keys alone). Point at an action, here or in the lines of text below the table, and both "
        "light up."
    )

    def __init__(self, stages: int = 3, micro_batches: int = 4, chunks: int = 1, start: str = "naive") -> None:
        whole_number(stages, "stages", 1, 6)
        whole_number(micro_batches, "micro_batches", 1, 8)
        whole_number(chunks, "chunks", 1, 4)
        if start not in SCHEDULES:
            raise ValueError(f"start={start!r}: begin with {', '.join(SCHEDULES)}")
        super().__init__(
            [
                choice("start", "begin with", list(SCHEDULES), start),
                slider("stages", "stages", range(1, 7), stages),
                slider("micro_batches", "micro-batches", range(1, 9), micro_batches),
                slider("chunks", "time chunks", range(1, 5), chunks),
                slider("backward", "backward / forward", [1, 1.5, 2], 1),
                slider("link", "link / forward", [0, 0.25, 0.5, 1], 0),
            ],
            [
                Button("run", "Run on real ranks", "Running on real ranks ...", ranks=True),
                Button("search", "Search for a better one", "Searching for a better one ..."),
                Button("take", "Take what was found"),
                Button("undo", "Undo"),
                Button("again", "Begin again"),
            ],
        )

    def changed(self, names: set[str]) -> None:
        """Start over when the sizes change; keep the schedule when only the costs change."""
        if names & {"start", *SIZES}:
            self.press_again()
        self.ran, self.found, self.news = (), None, ""

    def press_again(self) -> None:
        """Discard the schedule and start over."""
        self.schedule = make_schedule(self.values["start"], *(self.values[name] for name in SIZES))
        self.before: list[Schedule] = []
        self.by_hand = True
        self.ran: tuple[TimedAction, ...] = ()
        self.found: Simulation | None = None
        self.news = ""

    def press_undo(self) -> None:
        """Undo the last move."""
        self.news, self.ran = "Nothing to undo." if not self.before else "Undone.", ()
        if self.before:
            self.schedule = self.before.pop()

    def press_run(self) -> None:
        """Run the schedule on one real rank per stage, with a fixed time per action."""
        from course_lib.launchers import launch

        try:
            check(self.schedule)
        except IllegalSchedule:
            self.ran, self.news = (), "Not run: it would hang."
            return
        run = launch(one_step, self.schedule, self.own_costs, ranks=len(self.schedule.stages))
        self.ran, self.news = measured(self.schedule, run.spans), "Run on real ranks: compare the two pictures."

    def press_search(self) -> None:
        """Search for a better order of the same actions, in which no stage holds more than the fullest one does now."""
        try:
            check(self.schedule)
        except IllegalSchedule:
            self.news = "No search: the schedule on the bench never ends, so there is no memory limit to search within."
            return
        found, bound = better_schedule(self.schedule, self.own_costs), bound_of(self.schedule, self.own_costs)
        self.found = found
        self.news = f"Searched: no faster order of the same actions holds no more than yours; bound {bound:.4g}."
        if found:
            self.news = f"Found {found.makespan:.4g}, bound {bound:.4g}, holding no more than yours."

    def press_take(self) -> None:
        """Put the schedule that the search found on the bench."""
        if self.found is None:
            self.news = "There is nothing to take: no search has found a better one."
            return
        self.before.append(self.schedule)
        self.by_hand = False
        self.schedule, self.ran, self.news = self.found.schedule, (), "What was found is on the bench."

    def move(self, item: str, place: int) -> None:
        """Move an action to `place` in its stage's row; `item` is a stage and an action, "1:F2"."""
        number, _, label = item.partition(":")
        action, stages = Action.of(label), list(self.schedule.stages)
        if not number.isdigit() or int(number) >= len(stages) or action not in stages[int(number)]:
            raise ValueError(f"{item!r} is not in this schedule: write a stage and one of its actions, 1:F2")
        stage = int(number)
        row = [other for other in stages[stage] if other != action]
        row.insert(whole_number(place, "place", 0, len(row)), action)
        self.before.append(self.schedule)
        stages[stage] = tuple(row)
        self.schedule, self.ran = replace(self.schedule, name="yours", stages=tuple(stages)), ()
        self.news = f"Stage {stage} now does {self.schedule.label(action)} as number {place + 1} of {len(row)}."
        self.redraw()

    @property
    def said(self) -> str:
        """Return the news, the goal, and what the schedule does, each on a separate line."""
        return "\n".join(self._sentences)

    @property
    def own_costs(self) -> ActionCosts:
        """Return the costs of one action of this schedule: a virtual stage has its share of a whole stage's costs."""
        return ActionCosts(1.0, self.values["backward"], self.values["link"]).per_part(self.schedule)

    def draw(self) -> Drawing:
        schedule, costs = self.schedule, self.own_costs
        timed, waiting = simulate_until_stuck(schedule, costs)
        end, stages = makespan(timed), len(schedule.stages)
        # Actions that never start are placed after the point where everything has stopped.
        begun, placed = {(step.stage, step.action) for step in timed}, list(timed)
        held = []
        for stage, actions in enumerate(schedule.stages):
            started = [action for action in actions if (stage, action) in begun]
            held.append(fullest(held_after_each(started)).share_of(schedule.pieces))
            at = end
            for action in (action for action in actions if (stage, action) not in begun):
                placed.append(TimedAction(stage, action, at, at + costs.of(action, stage, schedule)))
                at = placed[-1].end
        longest = max(makespan(placed), makespan(self.ran) / PACE)  # the same scale for simulated and measured rows
        scale, bottom = chart.WIDTH / longest, TOP + chart.ROW * stages
        axis = "simulated, in units of a forward action" + (chart.DARKER if schedule.virtual > 1 else "")
        shapes = [
            chart.kinds_legend(placed, chart.LEFT, 16),
            chart.rows(stages, TOP, scale * (end if timed else longest)),
            self._boxes(placed, len(timed), scale),
            chart.held_bars(held, TOP),
            chart.time_axis(longest, scale, bottom, axis),
        ]
        if waiting:
            x = chart.LEFT + end * scale
            shapes += [line(x, TOP - 8, x, bottom, "dashed")]
            shapes += [text(x + 4, TOP - 11, "from here on, every stage waits", "ink small")]
        height = bottom + 40
        if self.ran:
            top, paced, sizes = bottom + GAP, scale / PACE, (schedule.chunks, schedule.virtual)
            shapes += [
                text(chart.LEFT, top - 10, "measured on real ranks, paced, on the same scale", "ink strong"),
                chart.rows(stages, top, makespan(self.ran) * paced),
                chart.plain_boxes(self.ran, paced, top, sizes),
            ]
            height += GAP + chart.ROW * stages
        simulation = None if waiting else Simulation(schedule, timed)
        bound = bound_of(schedule, costs) if simulation else None
        ratios = self.values["backward"], self.values["link"]
        others = named_schedules(stages, schedule.micro_batches, schedule.chunks, *ratios)
        below = score_table(simulation, others, self.found, bound) + written(schedule)
        self.unavailable = (*(["take"] if self.found is None else []), *(["undo"] if not self.before else []))
        self._sentences = self._words(simulation, waiting, others)
        return Drawing("".join(shapes), SHEET, height, " ".join(self._sentences), below, parts=True)

    def _boxes(self, placed: Sequence[TimedAction], running: int, scale: float) -> str:
        """Draw the actions, each focusable and movable, row by row; the first `running` of `placed` start."""
        schedule, shapes = self.schedule, []
        at = {(step.stage, step.action): (step, number < running) for number, step in enumerate(placed)}
        for stage, row in enumerate(schedule.stages):
            for place, action in enumerate(row):
                step, starts = at[stage, action]
                class_, ink = chart.look(action) if starts else ("stuck", "ink")
                left, width = chart.LEFT + step.start * scale, (step.end - step.start) * scale
                top, label = TOP + chart.ROW * stage, schedule.label(action)
                drawn = box(left + 0.5, top, max(1.0, width - 1), chart.TALL, class_, rx=2)
                # Without a color, the label shows the kind.
                if shown := chart.fitting_label(action, width, schedule.chunks, schedule.virtual, kind=not starts):
                    middle = left + width / 2, top + chart.TALL / 2 + 4.5
                    drawn += text(*middle, shown, ink, "middle", aria_hidden="true")
                times = f"from {step.start:.4g} to {step.end:.4g}" if starts else "never starts"
                words = f"stage {stage}, number {place + 1}: {NAMES[action.kind]} {label}, {times}"
                data = {"data_item": f"{stage}:{label}", "data_row": stage, "data_place": place}
                shapes.append(element("g", drawn, **data, tabindex=-1, role="button", aria_label=words))
        return "".join(shapes)

    def _words(
        self, simulation: Simulation | None, waiting: Sequence[Waiting], others: Mapping[str, Simulation]
    ) -> list[str]:
        """Return the news, the goal, and what the schedule does."""
        words = comparison(simulation, others) if simulation else why_stuck(self.schedule, waiting)
        if self.ran and simulation:
            duration = makespan(self.ran)
            ratio = duration / PACE / simulation.makespan
            words += f" Measured: {duration * 1000:.0f} ms, {ratio:.2f} times the simulated time."
        towards = goal(simulation, others, len(self.before)) if self.by_hand else ""
        return [part for part in (self.news, towards, words) if part]
