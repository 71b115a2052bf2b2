"""When the stages do what: a schedule played through with given costs, or measured on real ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from course_lib.planning.schedules import Action, Schedule, Step, check, dependencies, in_running_order, peak_held
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
    stages = 1 + max((one.stage for one in timed), default=-1)
    return tuple(sum(one.end - one.start for one in timed if one.stage == stage) for stage in range(stages))


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
    check(schedule)
    costs = costs or ActionCosts()
    _check_costs(costs, len(schedule.stages))
    free = [0.0] * len(schedule.stages)
    timed: dict[Step, TimedAction] = {}
    for stage, action in in_running_order(schedule):
        needed = [timed[step] for step in dependencies(action, stage, schedule)]
        arrivals = [one.end + (costs.link if one.stage != stage else 0.0) for one in needed]
        start = max([free[stage], *arrivals])
        free[stage] = start + costs.of(action, stage)
        timed[stage, action] = TimedAction(stage, action, start, free[stage])
    return Simulation(schedule, tuple(timed.values()))


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
