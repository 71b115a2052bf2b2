"""When each stage does what: simulate a schedule with given action costs, or read the times from real ranks' spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from course_lib.pipeline.actions import Action, Held, Step, fullest, held_after_each, producer_of
from course_lib.pipeline.schedule import Schedule, Waiting, checked_order, run_until_stuck, stuck_stages
from course_lib.runtime.trace import Span

Cost = float | Sequence[float]


@dataclass(frozen=True)
class ActionCosts:
    """How long *one action* takes: one number, or one per stage, or one per position in the model.

    `backward` is a whole backward pass. If it is split, `B` takes `input_gradients` and `W` takes `weight_gradients`;
    each defaults to half of `backward`. Recomputing a forward pass takes `forward`. `link` is how long a message to
    another stage is in flight, without keeping any stage busy.
    """

    forward: Cost = 1.0
    backward: Cost = 1.0
    link: float = 0.0
    input_gradients: Cost | None = None
    weight_gradients: Cost | None = None

    def __post_init__(self) -> None:
        for name, cost in vars(self).items():
            numbers = cost if isinstance(cost, Sequence) else [0.0 if cost is None else cost]
            if min(numbers, default=0) < 0:
                raise ValueError(f"{name}={cost}: a cost is a time, 0 or more")

    def of(self, action: Action, stage: int, schedule: Schedule | None = None) -> float:
        """Return how long `stage` is busy with `action`. `schedule` knows which passes are split, and positions."""
        is_split = schedule is not None and (stage, action.piece) in schedule.split
        cost = self._cost(action.kind, is_split)
        if not isinstance(cost, Sequence):
            return cost
        by_position = schedule is not None and len(cost) > len(schedule.stages)
        return cost[schedule.stage_map.position(stage, action.virtual) if schedule and by_position else stage]

    def _cost(self, kind: str, is_split: bool) -> Cost:
        if kind in ("F", "R"):
            return self.forward
        if kind == "B" and not is_split:
            return self.backward
        cost = self.input_gradients if kind == "B" else self.weight_gradients
        return _changed(self.backward, lambda number: number / 2) if cost is None else cost

    def split_over(self, schedule: Schedule) -> ActionCosts:
        """Divide a whole batch's costs, per stage or position, among the actions. `link` is per message: it stays."""
        stages, pieces = len(schedule.stages), schedule.micro_batches * schedule.chunks

        def share(cost: Cost) -> Cost:
            by_position = isinstance(cost, Sequence) and len(cost) > stages
            return _changed(cost, lambda number: number / (pieces if by_position else pieces * schedule.virtual))

        return self._map(share)

    def per_part(self, schedule: Schedule) -> ActionCosts:
        """Divide costs given for a whole stage equally among its virtual stages."""
        return self._map(lambda cost: _changed(cost, lambda number: number / schedule.virtual))

    def with_overhead(self, seconds: float) -> ActionCosts:
        """Return these costs with `seconds` added to every action, the fixed time to start it."""
        halves = replace(self, input_gradients=self._cost("B", True), weight_gradients=self._cost("W", True))
        return halves._map(lambda cost: _changed(cost, lambda number: number + seconds))

    def _map(self, change: Callable[[Cost], Cost]) -> ActionCosts:
        given = {name: cost for name, cost in vars(self).items() if name != "link" and cost is not None}
        return replace(self, **{name: change(cost) for name, cost in given.items()})

    def check_for(self, schedule: Schedule) -> None:
        """Raise ValueError if a list of costs has neither one entry per stage nor one per position."""
        stages, positions = schedule.stage_map.stages, schedule.stage_map.positions
        for name, cost in vars(self).items():
            if isinstance(cost, Sequence) and len(cost) not in (stages, positions):
                choices = "one per stage" + (f", or {positions}, one per position" if positions > stages else "")
                raise ValueError(f"{name} has {len(cost)} costs for {stages} stages: give one number, or {choices}")


def _changed(cost: Cost, change: Callable[[float], float]) -> Cost:
    return tuple(map(change, cost)) if isinstance(cost, Sequence) else change(cost)


NAMES = {"F": "forward", "B": "backward", "W": "weight gradients", "R": "recompute"}


@dataclass(frozen=True)
class TimedAction:
    """One action of one stage, from `start` to `end`. `paced` if it was stretched to a fixed length."""

    stage: int
    action: Action
    start: float
    end: float
    paced: bool = False


def makespan(timed: Sequence[TimedAction]) -> float:
    """Return the time from the first start to the last end."""
    return max(step.end for step in timed) - min(step.start for step in timed) if timed else 0.0


def busy(timed: Sequence[TimedAction]) -> tuple[float, ...]:
    """Return how long each stage works."""
    working = [0.0] * (1 + max((step.stage for step in timed), default=-1))
    for step in timed:
        working[step.stage] += step.end - step.start
    return tuple(working)


def bubble(timed: Sequence[TimedAction]) -> float:
    """Return the share of all stages' time that is idle, from 0 to 1."""
    total = len(busy(timed)) * makespan(timed)
    return 1 - sum(busy(timed)) / total if total else 0.0


def pieces_of(timed: Sequence[TimedAction]) -> tuple[int, int, int]:
    """Return how many micro-batches, chunks and virtual stages these actions cover."""
    pieces = [step.action.piece for step in timed] or [(0, 0, 0)]
    micro_batches, chunks, virtual = (1 + max(numbers) for numbers in zip(*pieces, strict=True))
    return micro_batches, chunks, virtual


def peak_share(timed: Sequence[TimedAction]) -> tuple[Held, ...]:
    """Return, per stage, the most it held at once, as a share of what the whole batch would take."""
    in_order = sorted(timed, key=lambda step: step.start)
    rows = [[step.action for step in in_order if step.stage == stage] for stage in range(len(busy(timed)))]
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
        """The idle share of stages * makespan, from 0 to 1."""
        return bubble(self.timed)

    @property
    def busy(self) -> tuple[float, ...]:
        """How long each stage works."""
        return busy(self.timed)

    @property
    def peak(self) -> tuple[int, ...]:
        """Per stage, the largest number of pieces with activations held at once."""
        return self.schedule.peak

    @property
    def peak_share(self) -> tuple[Held, ...]:
        """Per stage, the most it holds at once, as a share of what the whole batch would take."""
        return self.schedule.peak_share

    @property
    def spans(self) -> list[Span]:
        """The timed actions as spans, with stages as ranks, for `draw_timeline`."""
        return [Span(step.stage, NAMES[step.action.kind], step.start, step.end) for step in self.timed]

    def __repr__(self) -> str:
        held = " ".join(share.percent for share in self.peak_share)
        numbers = f"makespan {self.makespan:.6g}, bubble {self.bubble:.1%}, held at most {held} of the batch"
        return f"{self.schedule.name}: {numbers}"


def simulate(schedule: Schedule, costs: ActionCosts | None = None) -> Simulation:
    """Start every action as soon as its stage is free and its inputs have arrived. Without `costs`, each takes 1."""
    return Simulation(schedule, _timed(schedule, checked_order(schedule), costs or ActionCosts()))


def simulate_until_stuck(
    schedule: Schedule, costs: ActionCosts | None = None
) -> tuple[tuple[TimedAction, ...], list[Waiting]]:
    """Run a schedule that may be illegal; return the completed actions with their times, and the waiting stages."""
    order, heads = run_until_stuck(schedule)
    return _timed(schedule, order, costs or ActionCosts()), stuck_stages(schedule, order, heads)


def _timed(schedule: Schedule, order: Sequence[Step], costs: ActionCosts) -> tuple[TimedAction, ...]:
    """Return these steps with their times, each as early as possible."""
    times = Stopwatch(schedule, order).times(costs)
    return tuple(TimedAction(*step, *time) for step, time in zip(order, times, strict=True))


class Stopwatch:
    """A schedule that is prepared to be timed repeatedly; `order` is one in which its steps, or some, can run."""

    def __init__(self, schedule: Schedule, order: Sequence[Step] | None = None) -> None:
        self.schedule, self.order = schedule, checked_order(schedule) if order is None else order
        number = {step: place for place, step in enumerate(self.order)}
        kinds: dict[tuple[int, str, int, bool], int] = {}  # the actions of one kind cost the same
        self.steps: list[tuple[int, int, int | None]] = []
        self.examples: list[Step] = []
        for stage, action in self.order:
            kind = (stage, action.kind, action.virtual, (stage, action.piece) in schedule.split)
            if kind not in kinds:
                self.examples.append((stage, action))
            cost = kinds.setdefault(kind, len(kinds))
            producer = producer_of(action, stage, schedule.stage_map)
            over_link = producer is not None and producer[0] != stage
            self.steps.append((stage, cost, number[producer] if producer and over_link else None))

    def times(self, costs: ActionCosts) -> list[tuple[float, float]]:
        """Return (start, end) of each step: it starts once its stage is free and its message has arrived."""
        costs.check_for(self.schedule)
        seconds = [costs.of(action, stage, self.schedule) for stage, action in self.examples]
        free, times = [0.0] * len(self.schedule.stages), []
        for stage, cost, producer in self.steps:
            start = free[stage] if producer is None else max(free[stage], times[producer][1] + costs.link)
            free[stage] = end = start + seconds[cost]
            times.append((start, end))
        return times


def measured(schedule: Schedule, spans: Sequence[Span]) -> tuple[TimedAction, ...]:
    """Return the actions that ranks recorded while they executed `schedule`, with rank s as stage s, from time 0."""
    work = sorted((span for span in spans if span.name in NAMES.values()), key=lambda span: span.start)
    timed = []
    for stage, actions in enumerate(schedule.stages):
        recorded = [span.since(work[0].start) for span in work if span.rank == stage]
        names = [NAMES[action.kind] for action in actions]
        if [span.name for span in recorded] != names:
            raise ValueError(
                f"rank {stage} recorded {len(recorded)} actions that are not the {len(names)} actions of "
                f"stage {stage}: give the spans of one step, executed with this schedule"
            )
        timed += [
            TimedAction(stage, action, span.start, span.end, span.paced)
            for action, span in zip(actions, recorded, strict=True)
        ]
    return tuple(timed)
