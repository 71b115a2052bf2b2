"""When the stages do what: a schedule played through with given costs, or measured on real ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from course_lib.planning.schedules import (
    Action,
    Schedule,
    Step,
    as_far_as_it_goes,
    checked_order,
    dependencies,
    giver_of,
    peak_held,
)
from course_lib.trace import Span

NAMES = {"F": "forward", "B": "backward"}


@dataclass(frozen=True)
class ActionCosts:
    """How long *one action* takes, forward and backward: a number, or one for each stage.

    `link` is how long a message is under way to the next stage; no stage works for it.
    """

    forward: float | Sequence[float] = 1.0
    backward: float | Sequence[float] = 1.0
    link: float = 0.0

    def __post_init__(self) -> None:
        for name, given in vars(self).items():
            if min(given if isinstance(given, Sequence) else [given], default=0) < 0:
                raise ValueError(f"{name}={given}: a cost is a time, 0 or more")

    def of(self, action: Action, stage: int) -> float:
        """How long `stage` works for `action`."""
        given = getattr(self, NAMES[action.kind])
        return given[stage] if isinstance(given, Sequence) else given

    def split_over(self, schedule: Schedule) -> ActionCosts:
        """These costs, given for a whole batch, per action of `schedule`. The link's stays: it is per message."""
        pieces = schedule.micro_batches * schedule.chunks
        return self._changed(lambda cost: cost / pieces)

    def with_overhead(self, seconds: float) -> ActionCosts:
        """These costs, if starting an action takes so long, however small it is."""
        return self._changed(lambda cost: cost + seconds)

    def _changed(self, change: Callable[[float], float]) -> ActionCosts:
        def changed(given: float | Sequence[float]) -> float | Sequence[float]:
            return tuple(map(change, given)) if isinstance(given, Sequence) else change(given)

        return replace(self, forward=changed(self.forward), backward=changed(self.backward))


@dataclass(frozen=True)
class TimedAction:
    """One action of one stage, from `start` to `end`. `paced` says that it was stretched to a fixed length."""

    stage: int
    action: Action
    start: float
    end: float
    paced: bool = False


def makespan(timed: Sequence[TimedAction]) -> float:
    """From the first start to the last end."""
    return max(one.end for one in timed) - min(one.start for one in timed) if timed else 0.0


def busy(timed: Sequence[TimedAction]) -> tuple[float, ...]:
    """How long each stage works."""
    working = [0.0] * (1 + max((one.stage for one in timed), default=-1))
    for one in timed:
        working[one.stage] += one.end - one.start
    return tuple(working)


def bubble(timed: Sequence[TimedAction]) -> float:
    """The share of all stages' time in which they do not work, from 0 to 1."""
    working = busy(timed)
    whole = len(working) * makespan(timed)
    return 1 - sum(working) / whole if whole else 0.0


def peak(timed: Sequence[TimedAction]) -> tuple[int, ...]:
    """Per stage, for how many actions activations were held at once."""
    in_order = sorted(timed, key=lambda one: one.start)
    return tuple(peak_held(one.action for one in in_order if one.stage == stage) for stage in range(len(busy(timed))))


@dataclass(frozen=True, repr=False)
class Simulation:
    """A schedule, and when each of its actions starts and ends, in the unit of the costs."""

    schedule: Schedule
    timed: tuple[TimedAction, ...]

    @property
    def makespan(self) -> float:
        return makespan(self.timed)

    @property
    def bubble(self) -> float:
        """The share of stages * makespan in which no work is done, from 0 to 1."""
        return bubble(self.timed)

    @property
    def busy(self) -> tuple[float, ...]:
        """How long each stage works."""
        return busy(self.timed)

    @property
    def peak(self) -> tuple[int, ...]:
        """Per stage, for how many actions, (micro-batch, chunk) pairs, activations are held at once."""
        return self.schedule.peak

    @property
    def peak_micro_batches(self) -> tuple[float, ...]:
        """The same counted in whole micro-batches, so that schedules with other chunks can be compared."""
        return tuple(held / self.schedule.chunks for held in self.peak)

    @property
    def spans(self) -> list[Span]:
        """The same as spans, stages as ranks: what `pictures.timeline` draws."""
        return [Span(one.stage, NAMES[one.action.kind], one.start, one.end) for one in self.timed]

    def __repr__(self) -> str:
        held = " ".join(f"{count:.3g}" for count in self.peak_micro_batches)
        numbers = f"makespan {self.makespan:.6g}, bubble {self.bubble:.1%}, at most {held} micro-batches held"
        return f"{self.schedule.name}: {numbers}"


def simulate(schedule: Schedule, costs: ActionCosts | None = None) -> Simulation:
    """Every action starts as soon as its stage is free and what it needs has arrived. Without costs, each takes 1."""
    order = checked_order(schedule)
    return Simulation(schedule, _timed(schedule, order, costs or ActionCosts()))


@dataclass(frozen=True)
class Waiting:
    """A stage that cannot go on: which of its actions waits for which step."""

    stage: int
    action: Action
    needs: Step


def simulate_until_stuck(
    schedule: Schedule, costs: ActionCosts | None = None
) -> tuple[tuple[TimedAction, ...], list[Waiting]]:
    """What happens if stages just begin, however the actions are ordered: what gets done when, and who waits then."""
    order, heads = as_far_as_it_goes(schedule)
    done, waiting = set(order), []
    for stage, head in enumerate(heads):
        for action in schedule.stages[stage][head : head + 1]:
            missing = [step for step in dependencies(action, stage, schedule) if step not in done]
            waiting.append(Waiting(stage, action, missing[0]))
    return _timed(schedule, order, costs or ActionCosts()), waiting


def _timed(schedule: Schedule, order: Sequence[Step], costs: ActionCosts) -> tuple[TimedAction, ...]:
    """These steps, each as early as can be."""
    times = Stopwatch(len(schedule.stages), order).times(costs)
    return tuple(TimedAction(*step, *time) for step, time in zip(order, times, strict=True))


class Stopwatch:
    """Steps in an order in which they can be done, prepared to be timed again and again with other costs."""

    def __init__(self, stages: int, order: Sequence[Step]) -> None:
        number: dict[tuple[int | None, Action], int] = {step: place for place, step in enumerate(order)}
        self.stages = stages
        self.steps = [
            (stage, action.kind == "B", number.get((giver_of(action, stage, stages), action)))
            for stage, action in order
        ]

    def times(self, costs: ActionCosts) -> list[tuple[float, float]]:
        """(start, end) of each step, as early as can be: its stage is free, and its message has arrived."""
        _check_costs(costs, self.stages)
        each = [(costs.of(Action("F", 0), stage), costs.of(Action("B", 0), stage)) for stage in range(self.stages)]
        free, times = [0.0] * self.stages, []
        for stage, is_backward, giver in self.steps:
            start = free[stage] if giver is None else max(free[stage], times[giver][1] + costs.link)
            free[stage] = end = start + each[stage][is_backward]
            times.append((start, end))
        return times


def measured(schedule: Schedule, spans: Sequence[Span]) -> tuple[TimedAction, ...]:
    """What ranks recorded while they executed `schedule`, rank s as stage s; time counts from the first of it.

    The n-th span named `forward` or `backward` of a stage is the stage's n-th action.
    """
    work = sorted((span for span in spans if span.name in NAMES.values()), key=lambda span: span.start)
    timed = []
    for stage, actions in enumerate(schedule.stages):
        own = [span.since(work[0].start) for span in work if span.rank == stage]
        names = [NAMES[action.kind] for action in actions]
        if [span.name for span in own] != names:
            raise ValueError(
                f"rank {stage} recorded {len(own)} forwards and backwards that are not the {len(names)} actions of "
                f"stage {stage}: give the spans of one step, executed with this schedule"
            )
        timed += [
            TimedAction(stage, action, span.start, span.end, span.paced)
            for action, span in zip(actions, own, strict=True)
        ]
    return tuple(timed)


def _check_costs(costs: ActionCosts, stages: int) -> None:
    for name in NAMES.values():
        given = getattr(costs, name)
        if isinstance(given, Sequence) and len(given) != stages:
            raise ValueError(f"{name} has {len(given)} costs for {stages} stages: give one number, or one per stage")
