"""When the stages do what: a schedule played through with given costs, or measured on real ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from course_lib.planning.costs import ActionCosts
from course_lib.planning.schedules import (
    Action,
    Held,
    Schedule,
    Step,
    Waiting,
    as_far_as_it_goes,
    checked_order,
    fullest,
    giver_of,
    held_after_each,
    peak_held,
    who_waits,
)
from course_lib.trace import Span

NAMES = {"F": "forward", "B": "backward", "W": "weight gradients", "R": "recompute"}


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


def pieces_of(timed: Sequence[TimedAction]) -> tuple[int, int, int]:
    """How many micro-batches, chunks and virtual stages there are in what was done."""
    pieces = [one.action.piece for one in timed] or [(0, 0, 0)]
    micro_batches, chunks, virtual = (1 + max(numbers) for numbers in zip(*pieces, strict=True))
    return micro_batches, chunks, virtual


def peak_share(timed: Sequence[TimedAction]) -> tuple[Held, ...]:
    """Per stage, the most that was held at once, as shares of what it would hold for the whole batch."""
    in_order = sorted(timed, key=lambda one: one.start)
    rows = [[one.action for one in in_order if one.stage == stage] for stage in range(len(busy(timed)))]
    return tuple(fullest(held_after_each(row)).share_of(prod(pieces_of(timed))) for row in rows)


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
        """Per stage, of how many pieces (micro-batch, chunk, virtual stage) activations are held at once."""
        return self.schedule.peak

    @property
    def peak_share(self) -> tuple[Held, ...]:
        """Per stage, the most it holds at once, as shares of what it would hold for the whole batch."""
        return self.schedule.peak_share

    @property
    def spans(self) -> list[Span]:
        """The same as spans, stages as ranks: what `pictures.timeline` draws."""
        return [Span(one.stage, NAMES[one.action.kind], one.start, one.end) for one in self.timed]

    def __repr__(self) -> str:
        held = " ".join(share.percent for share in self.peak_share)
        numbers = f"makespan {self.makespan:.6g}, bubble {self.bubble:.1%}, held at most {held} of the batch"
        return f"{self.schedule.name}: {numbers}"


def simulate(schedule: Schedule, costs: ActionCosts | None = None) -> Simulation:
    """Every action starts as soon as its stage is free and what it needs has arrived. Without costs, each takes 1."""
    order = checked_order(schedule)
    return Simulation(schedule, _timed(schedule, order, costs or ActionCosts()))


def simulate_until_stuck(
    schedule: Schedule, costs: ActionCosts | None = None
) -> tuple[tuple[TimedAction, ...], list[Waiting]]:
    """What happens if stages just begin, however the actions are ordered: what gets done when, and who waits then."""
    order, heads = as_far_as_it_goes(schedule)
    return _timed(schedule, order, costs or ActionCosts()), who_waits(schedule, order, heads)


def _timed(schedule: Schedule, order: Sequence[Step], costs: ActionCosts) -> tuple[TimedAction, ...]:
    """These steps, each as early as can be."""
    times = Stopwatch(schedule, order).times(costs)
    return tuple(TimedAction(*step, *time) for step, time in zip(order, times, strict=True))


class Stopwatch:
    """A schedule, prepared to be timed again and again with other costs.

    `order` is one in which its steps, or some of them, can be done; without it the schedule is checked.
    """

    def __init__(self, schedule: Schedule, order: Sequence[Step] | None = None) -> None:
        self.schedule, self.order = schedule, checked_order(schedule) if order is None else order
        number = {step: place for place, step in enumerate(self.order)}
        kinds: dict[tuple[int, str, int, bool], int] = {}  # which actions cost the same
        self.steps: list[tuple[int, int, int | None]] = []
        self.examples: list[Step] = []
        for stage, action in self.order:
            kind = (stage, action.kind, action.virtual, (stage, action.piece) in schedule.split)
            if kind not in kinds:
                self.examples.append((stage, action))
            cost = kinds.setdefault(kind, len(kinds))
            giver = giver_of(action, stage, schedule.places)
            over_link = giver is not None and giver[0] != stage
            self.steps.append((stage, cost, number[giver] if giver and over_link else None))

    def times(self, costs: ActionCosts) -> list[tuple[float, float]]:
        """(start, end) of each step, as early as can be: its stage is free, and its message has arrived."""
        costs.check_for(self.schedule)
        each = [costs.of(action, stage, self.schedule) for stage, action in self.examples]
        free, times = [0.0] * len(self.schedule.stages), []
        for stage, cost, giver in self.steps:
            start = free[stage] if giver is None else max(free[stage], times[giver][1] + costs.link)
            free[stage] = end = start + each[cost]
            times.append((start, end))
        return times


def measured(schedule: Schedule, spans: Sequence[Span]) -> tuple[TimedAction, ...]:
    """What ranks recorded while they executed `schedule`, rank s as stage s; time counts from the first of it.

    The n-th span of a stage that has the name of a kind of action (`NAMES`) is the stage's n-th action.
    """
    work = sorted((span for span in spans if span.name in NAMES.values()), key=lambda span: span.start)
    timed = []
    for stage, actions in enumerate(schedule.stages):
        own = [span.since(work[0].start) for span in work if span.rank == stage]
        names = [NAMES[action.kind] for action in actions]
        if [span.name for span in own] != names:
            raise ValueError(
                f"rank {stage} recorded {len(own)} actions that are not the {len(names)} actions of "
                f"stage {stage}: give the spans of one step, executed with this schedule"
            )
        timed += [
            TimedAction(stage, action, span.start, span.end, span.paced)
            for action, span in zip(actions, own, strict=True)
        ]
    return tuple(timed)
