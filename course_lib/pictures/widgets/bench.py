"""The schedule bench: put the actions of every stage in any order, and see the effect immediately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from course_lib.pictures import schedule_chart as chart
from course_lib.pictures.svg import SHEET, Drawing, box, element, text
from course_lib.pictures.widgets.bench_results import (
    PACE,
    after_the_end,
    bound_like,
    comparison,
    describe_waiting,
    goal,
    named_schedules,
    run_paced,
    score_table,
    search_like,
    stuck_line,
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
    simulate,
    simulate_until_stuck,
)

TOP = 48
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
        self._begin(start, stages, micro_batches, chunks)
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

    def _begin(self, start: str, stages: int, micro_batches: int, chunks: int) -> None:
        self.schedule = make_schedule(start, stages, micro_batches, chunks)
        self.before: list[Schedule] = []
        self.by_hand = True
        self.ran: tuple[TimedAction, ...] = ()
        self.found: Simulation | None = None
        self.news = ""

    def changed(self, names: set[str]) -> None:
        """Start over when the sizes change; keep the schedule when only the costs change."""
        self.ran, self.found, self.news = (), None, ""
        if names & {"start", "stages", "micro_batches", "chunks"}:
            self.press_again()

    def press_again(self) -> None:
        """Discard the schedule and start over."""
        sizes = (self.values[name] for name in ("stages", "micro_batches", "chunks"))
        self._begin(self.values["start"], *sizes)

    def press_undo(self) -> None:
        """Undo the last move."""
        self.news, self.ran = "Nothing to undo." if not self.before else "Undone.", ()
        if self.before:
            self.schedule = self.before.pop()

    def press_run(self) -> None:
        """Run the schedule on one real rank per stage, with a fixed time per action."""
        try:
            self.ran = run_paced(self.schedule, self.own_costs)
            self.news = "Run on real ranks: compare the two pictures."
        except IllegalSchedule:
            self.ran, self.news = (), "Not run: it would hang."

    def press_search(self) -> None:
        """Search for a better order of the same actions, in which no stage holds more than the fullest one does now."""
        try:
            check(self.schedule)
        except IllegalSchedule:
            self.news = "No search: the schedule on the bench never ends, so there is no memory limit to search within."
            return
        better, bound = search_like(self.schedule, self.own_costs), bound_like(self.schedule, self.own_costs)
        if better.makespan > simulate(self.schedule, self.own_costs).makespan * (1 - 1e-9):
            self.found = None
            self.news = f"Searched: no faster order of the same actions holds no more than yours; bound {bound:.4g}."
            return
        self.found = better
        self.news = f"Found {better.makespan:.4g}, bound {bound:.4g}, holding no more than yours."

    def press_take(self) -> None:
        """Put the schedule that the search found on the bench."""
        if self.found is None:
            self.news = "There is nothing to take: no search has found a better one."
            return
        self.before.append(self.schedule)
        self.by_hand = False
        self.schedule, self.ran, self.news = self.found.schedule, (), "What was found is on the bench."

    def moved(self, item: str, place: int) -> None:
        """Move an action to `place` in its stage's row; `item` is a stage and an action, "1:F2"."""
        stage, action = _item(item, self.schedule)
        row = [other for other in self.schedule.stages[stage] if other != action]
        row.insert(whole_number(place, "place", 0, len(row)), action)
        self.before.append(self.schedule)
        stages = (*self.schedule.stages[:stage], tuple(row), *self.schedule.stages[stage + 1 :])
        self.schedule = replace(self.schedule, name="yours", stages=stages)
        self.ran = ()
        self.news = f"Stage {stage} now does {self.schedule.label(action)} as number {place + 1} of {len(row)}."

    @property
    def said(self) -> str:
        """Return the news, the goal, and what the schedule does, each on a separate line."""
        return "\n".join(self._parts)

    @property
    def unavailable(self) -> tuple[str, ...]:
        """Return the names of the buttons that have no effect now."""
        return (*(["take"] if self.found is None else []), *(["undo"] if not self.before else []))

    @property
    def costs(self) -> ActionCosts:
        """Return the costs of one action of a whole stage, in units of a forward pass."""
        return ActionCosts(1.0, self.values["backward"], self.values["link"])

    @property
    def own_costs(self) -> ActionCosts:
        """Return the costs of one action of this schedule: a virtual stage has its share of the stage's costs."""
        return self.costs.per_part(self.schedule)

    def draw(self) -> Drawing:
        timed, waiting = simulate_until_stuck(self.schedule, self.own_costs)
        placed = [*timed, *after_the_end(self.schedule, timed, self.own_costs)]
        stages = len(self.schedule.stages)
        unit = self._longest(placed)
        scale = chart.WIDTH / unit
        bottom = TOP + chart.ROW * stages
        begun = {(step.stage, step.action) for step in timed}
        begun_rows = [[action for action in row if (stage, action) in begun] for stage, row in self._rows]
        held = [fullest(held_after_each(row)).share_of(self.schedule.pieces) for row in begun_rows]
        stuck_at = makespan(timed) if waiting else None
        shapes = [
            chart.kinds_legend(placed, chart.LEFT, 16),
            chart.row_names(stages, TOP),
            chart.idle_rows(stages, TOP, scale * (makespan(timed) if timed else unit)),
            self._boxes(placed, len(timed), scale),
            chart.held_bars(held, TOP),
            chart.time_axis(
                unit,
                scale,
                bottom,
                "simulated, in units of a forward action" + (chart.DARKER if self.schedule.virtual > 1 else ""),
            ),
            "" if stuck_at is None else stuck_line(chart.LEFT + stuck_at * scale, TOP, bottom),
            self._measured(scale, bottom + GAP),
        ]
        height = bottom + 40 + (GAP + chart.ROW * stages if self.ran else 0)
        simulation = None if waiting else Simulation(self.schedule, timed)
        bound = bound_like(self.schedule, self.own_costs) if simulation else None
        others = named_schedules(self.schedule, self.costs)
        below = score_table(simulation, others, self.found, bound) + written(self.schedule)
        self._parts = self._words(simulation, waiting)
        return Drawing("".join(shapes), SHEET, height, " ".join(self._parts), below, parts=True)

    @property
    def _rows(self) -> list[tuple[int, tuple[Action, ...]]]:
        return list(enumerate(self.schedule.stages))

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.schedule.chunks, self.schedule.virtual

    def _longest(self, placed: Sequence[TimedAction]) -> float:
        """Return the time that the picture's width represents, the same for simulated and measured rows."""
        return max(makespan(placed), makespan(self.ran) / PACE)

    def _boxes(self, placed: Sequence[TimedAction], running: int, scale: float) -> str:
        """Draw the actions, each focusable and movable; those after `running` never start."""
        place_of = {(stage, action): place for stage, actions in self._rows for place, action in enumerate(actions)}
        in_order = sorted(enumerate(placed), key=lambda pair: (pair[1].stage, place_of[pair[1].stage, pair[1].action]))
        shapes = []
        for number, step in in_order:
            label, starts = self.schedule.label(step.action), number < running
            times = f"from {step.start:.4g} to {step.end:.4g}" if starts else "never starts"
            place = place_of[step.stage, step.action]
            shapes.append(
                action_box(
                    step.action,
                    chart.LEFT + step.start * scale,
                    (step.end - step.start) * scale,
                    TOP + chart.ROW * step.stage,
                    self._sizes,
                    "" if starts else "stuck",
                    data_item=f"{step.stage}:{label}",
                    data_row=step.stage,
                    data_place=place,
                    tabindex=-1,
                    role="button",
                    aria_label=f"stage {step.stage}, number {place + 1}: {NAMES[step.action.kind]} {label}, {times}",
                )
            )
        return "".join(shapes)

    def _measured(self, scale: float, top: float) -> str:
        if not self.ran:
            return ""
        stages = len(self.schedule.stages)
        scale = scale / PACE
        return "".join(
            [
                text(chart.LEFT, top - 10, "measured on real ranks, paced, on the same scale", "ink strong"),
                chart.row_names(stages, top),
                chart.idle_rows(stages, top, makespan(self.ran) * scale),
                chart.plain_boxes(self.ran, scale, top, self._sizes),
            ]
        )

    def _words(self, simulation: Simulation | None, waiting: Sequence[Waiting]) -> list[str]:
        """Return the news, the goal, and what the schedule does."""
        if simulation is None:
            words = f"Stuck: {why_stuck(self.schedule)}. {describe_waiting(waiting, self.schedule)}"
        else:
            words = comparison(simulation, named_schedules(self.schedule, self.costs))
        if self.ran and simulation:
            duration = makespan(self.ran)
            ratio = duration / PACE / simulation.makespan
            words += f" Measured: {duration * 1000:.0f} ms, {ratio:.2f} times the simulated time."
        towards = goal(simulation, named_schedules(self.schedule, self.costs), len(self.before)) if self.by_hand else ""
        return [part for part in (self.news, towards, words) if part]


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
    shapes = [box(left + 0.5, top, max(1.0, width - 1), chart.TALL, class_ or chart.color_class(action), rx=2)]
    label = chart.fitting_label(action, width, *sizes, kind=bool(class_))  # without a color, the label shows the kind
    if label:
        ink = "ink" if class_ else chart.ink_on(action)
        shapes.append(text(left + width / 2, top + chart.TALL / 2 + 4.5, label, ink, "middle", aria_hidden="true"))
    return element("g", *shapes, **attributes)


def _item(item: str, schedule: Schedule) -> tuple[int, Action]:
    stage, _, label = item.partition(":")
    action = Action.of(label)
    if not stage.isdigit() or int(stage) >= len(schedule.stages) or action not in schedule.stages[int(stage)]:
        raise ValueError(f"{item!r} is not in this schedule: write a stage and one of its actions, 1:F2")
    return int(stage), action
