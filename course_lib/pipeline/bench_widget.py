"""The schedule bench: put the actions of every stage in any order, and see the effect immediately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from course_lib.drawing.explorer import Button, Explorer, choice, slider, whole_number
from course_lib.drawing.svg import SHEET, Drawing, box, element, line, table, text
from course_lib.pipeline import schedule_picture as chart
from course_lib.pipeline.actions import Action, IllegalSchedule, fullest, held_after_each
from course_lib.pipeline.named_schedules import SCHEDULES, make_schedule
from course_lib.pipeline.schedule import Schedule, Waiting, check
from course_lib.pipeline.search import lower_bound
from course_lib.pipeline.simulation import (
    NAMES,
    ActionCosts,
    Simulation,
    TimedAction,
    makespan,
    measured,
    simulate,
    simulate_until_stuck,
)
from course_lib.runtime.words import counted

TOP = 48
SIZES = ("stages", "micro_batches", "chunks")
GAP = 74  # between the simulated rows and the measured ones
PACE = 0.02  # seconds per forward action on real ranks


class ScheduleBench(Explorer):
    """Build a schedule by moving its actions: see deadlocks, bubble and memory as you go, and run it on real ranks.

    `bench.schedule` is the schedule you have built.
    """

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
                Button("undo", "Undo"),
                Button("again", "Begin again"),
            ],
        )

    def changed(self, names: set[str]) -> None:
        """Start over when the sizes change; keep the schedule when only the costs change."""
        if names & {"start", *SIZES}:
            self.press_again()
        self.ran, self.news = (), ""

    def press_again(self) -> None:
        """Discard the schedule and start over."""
        self.schedule = make_schedule(self.values["start"], *(self.values[name] for name in SIZES))
        self.before: list[Schedule] = []
        self.ran: tuple[TimedAction, ...] = ()
        self.news = ""

    def press_undo(self) -> None:
        """Undo the last move."""
        self.news, self.ran = "Nothing to undo." if not self.before else "Undone.", ()
        if self.before:
            self.schedule = self.before.pop()

    def press_run(self) -> None:
        """Run the schedule on one real rank per stage, with a fixed time per action."""
        from course_lib.launcher.notebook.launch import launch

        try:
            check(self.schedule)
        except IllegalSchedule:
            self.ran, self.news = (), "Not run: it would hang."
            return
        run = launch(one_step, self.schedule, self.own_costs, ranks=len(self.schedule.stages))
        self.ran, self.news = measured(self.schedule, run.spans), "Run on real ranks: compare the two pictures."

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
        ratios = self.values["backward"], self.values["link"]
        others = named_schedules(stages, schedule.micro_batches, schedule.chunks, *ratios)
        below = score_table(schedule, simulation, others, costs) + chart.written(schedule)
        self.unavailable = () if self.before else ("undo",)
        words = comparison(simulation, others) if simulation else why_stuck(schedule, waiting)
        if self.ran and simulation:
            duration = makespan(self.ran)
            ratio = duration / PACE / simulation.makespan
            words += f" Measured: {duration * 1000:.0f} ms, {ratio:.2f} times the simulated time."
        towards = goal(simulation, others, len(self.before))
        self._sentences = [part for part in (self.news, towards, words) if part]
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


schedule_bench = ScheduleBench


@lru_cache(maxsize=16)  # moving an action does not change the arguments
def named_schedules(
    stages: int, micro_batches: int, chunks: int, backward: float, link: float
) -> Mapping[str, Simulation]:
    """Return the named schedules of these sizes, whose forward actions take 1. With one chunk, a wavefront is 1F1B."""
    costs = ActionCosts(1.0, backward, link)  # of a whole stage: a virtual stage has its share of them
    names = [name for name in SCHEDULES if chunks > 1 or name != "wavefront"]
    schedules = {name: make_schedule(name, stages, micro_batches, chunks) for name in names}
    return {name: simulate(schedule, costs.per_part(schedule)) for name, schedule in schedules.items()}


def score_table(
    schedule: Schedule, yours: Simulation | None, others: Mapping[str, Simulation], costs: ActionCosts
) -> str:
    """Return a table with your schedule, the named ones, and the makespan that no order of its actions can beat."""
    rows = [] if yours else [["yours", "never ends", "", "", ""]]
    for name, simulation in [*([("yours", yours)] if yours else []), *others.items()]:
        held = [100 * share.total for share in simulation.peak_share]
        shares = f"{max(held):.3g}%", f"{sum(held) / len(held):.3g}%"
        rows.append([name, f"{simulation.makespan:.4g}", f"{simulation.bubble:.1%}", *shares])
    if yours:
        sizes = {name: getattr(schedule, name) for name in ("micro_batches", "chunks", "virtual", "layout")}
        bound = lower_bound(len(schedule.stages), costs=costs, split=bool(schedule.split), **sizes)
        rows.append(["bound, with any memory", f"{bound:.4g}", "", "", ""])
    head = ["schedule", "makespan", "bubble", "fullest stage holds", "all stages hold"]
    return table(head, rows, "Your schedule next to the named ones; what is held, as a share of the batch")


def comparison(yours: Simulation, others: Mapping[str, Simulation]) -> str:
    """Return what your schedule takes and holds, and which named schedules it beats, equals, or loses to."""
    facts = (
        f"It runs: makespan {yours.makespan:.4g}, bubble {yours.bubble:.1%}, "
        f"held at most, of the batch: {', '.join(share.percent for share in yours.peak_share)}."
    )
    better, equal = [], []
    time, held = yours.makespan, sum(share.total for share in yours.peak_share)
    for name, other in others.items():
        slower = other.makespan - time
        if abs(slower) <= 1e-9 * max(other.makespan, 1):  # as fast, within rounding: compare the memory
            slower = sum(share.total for share in other.peak_share) - held
        if abs(slower) <= 1e-9:
            equal.append(name)
        elif slower < 0:
            better.append(name)
    if better:
        return f"{facts} Named schedules that are faster, or as fast with less memory: {', '.join(better)}."
    as_good = f"as good: {', '.join(equal)}" if equal else "none is as good"
    return f"{facts} No named schedule is better; {as_good}."


def goal(yours: Simulation | None, others: Mapping[str, Simulation], moves: int) -> str:
    """Return the goal, GPipe's time in 1F1B's memory, and the number of moves; empty if 1F1B saves no memory."""

    def most_held(simulation: Simulation) -> float:
        return max(share.total for share in simulation.peak_share)

    target, least = others["gpipe"].makespan, most_held(others["1f1b"])
    if most_held(others["gpipe"]) <= least + 1e-9:
        return ""
    if yours and yours.makespan <= target * (1 + 1e-9) and most_held(yours) <= least + 1e-9:
        return f"✓ Goal reached in {counted(moves, 'move')}: GPipe's time in 1F1B's memory." if moves else ""
    held = f"no stage holds over {100 * least:.3g}%, as in 1F1B"
    return f"Goal: makespan {target:.4g}, as in GPipe; {held}. So far: {counted(moves, 'move')}."


def why_stuck(schedule: Schedule, waiting: Sequence[Waiting]) -> str:
    """Return what is wrong with an illegal schedule, and which stage waits for which other one."""
    reason = ""
    try:
        check(schedule)
    except IllegalSchedule as error:
        reason = str(error)
    sentences = []
    for wait in waiting:
        stage, action = wait.needs
        whose = "its own" if stage == wait.stage else f"stage {stage}'s"
        sentences.append(f"stage {wait.stage} with {schedule.label(wait.action)} for {whose} {schedule.label(action)}")
    return f"Stuck: {reason}. Who waits: {'; '.join(sentences)}."


def one_step(schedule: Schedule, costs: ActionCosts) -> None:
    """Run two training steps on each rank; only the second is recorded, to leave out the setup."""
    from functools import partial

    import torch
    import torch.distributed as dist

    from course_lib.core.adding import AddingProblem
    from course_lib.core.model import lstm_model, squared_error
    from course_lib.pipeline.pipeline import Pipeline
    from course_lib.runtime import trace

    model = lstm_model(features=2, hidden=8, layers=max(1, schedule.stage_map.positions - 2), outputs=1)
    forward, backward = costs.forward, costs.backward
    assert isinstance(forward, (int, float))  # the bench has one number for all stages
    assert isinstance(backward, (int, float))
    pace = ActionCosts(PACE * forward, PACE * backward)
    strategy = Pipeline(model, partial(torch.optim.SGD, lr=0.01), squared_error, schedule=schedule, pace=pace)
    steps = max(2, schedule.chunks)
    batch = AddingProblem(schedule.micro_batches, lengths=(steps, steps)).batch(range(schedule.micro_batches))
    for _ in range(2):
        dist.barrier()
        trace.recorder.spans.clear()
        strategy.step(batch)
