"""Who does what in which order: a pipeline schedule is data, one list of actions per stage.

The same object is drawn, simulated and executed. A schedule orders the actions of each stage; *when* an action starts
follows from what it needs. With stage s, micro-batch m and time chunk c:

    F(s, m, c) needs F(s-1, m, c), the activations, over a link, and F(s, m, c-1), the state (h, c), on the stage;
    B(s, m, c) needs F(s, m, c), what its forward kept, B(s+1, m, c), the gradient, over a link, and B(s, m, c+1),
    the gradient of the state.

A message never makes its sender wait, and may be received in another order than it was sent in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, zip_longest


class IllegalSchedule(ValueError):
    """No stages could execute this, and the message says why."""


@dataclass(frozen=True, order=True)
class Action:
    """The forward (`F`) or backward (`B`) pass of one micro-batch, or of one of its time chunks."""

    kind: str
    micro_batch: int
    chunk: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("F", "B"):
            raise ValueError(f"kind={self.kind!r}: an action is F, a forward pass, or B, a backward pass")
        if min(self.micro_batch, self.chunk) < 0:
            raise ValueError(f"micro_batch={self.micro_batch}, chunk={self.chunk}: both count from 0")

    @classmethod
    def of(cls, given: Action | str) -> Action:
        """The action written as `F3` or, for a chunk, `F3.2`; an action is already one."""
        if isinstance(given, Action):
            return given
        parts = re.fullmatch(r"([FB])(\d+)(?:\.(\d+))?", str(given))
        if not parts:
            raise ValueError(f"{given!r} is not an action: write F or B, the micro-batch and, if any, the chunk: F3.2")
        kind, micro_batch, chunk = parts.groups()
        return cls(kind, int(micro_batch), int(chunk or 0))

    def label(self, chunks: int = 1) -> str:
        """`F3`, or `F3.0` in a schedule of several chunks."""
        return f"{self.kind}{self.micro_batch}" + (f".{self.chunk}" if chunks > 1 else "")

    def __str__(self) -> str:
        return self.label(chunks=self.chunk + 1)


Step = tuple[int, Action]  # which stage does what


@dataclass(frozen=True)
class Schedule:
    """For each stage its actions, in order. `str` shows them, one stage per line."""

    name: str
    stages: tuple[tuple[Action, ...], ...]
    micro_batches: int
    chunks: int = 1

    @classmethod
    def of(cls, stages: Iterable[str | Iterable[Action | str]], name: str = "my schedule") -> Schedule:
        """A schedule of your own, checked: per stage a text, "F0 F1 B0 B1", or a list of actions or of their names."""
        lists = [stage.split() if isinstance(stage, str) else list(stage) for stage in stages]
        actions = tuple(tuple(map(Action.of, stage)) for stage in lists)
        everything = list(chain.from_iterable(actions))
        micro_batches = 1 + max((action.micro_batch for action in everything), default=0)
        schedule = cls(name, actions, micro_batches, 1 + max((action.chunk for action in everything), default=0))
        check(schedule)
        return schedule

    @property
    def peak(self) -> tuple[int, ...]:
        """Per stage, for how many actions activations are held at once: forward done, backward not yet."""
        return tuple(peak_held(stage) for stage in self.stages)

    def label(self, action: Action) -> str:
        """How `action` is written in this schedule: with its chunk where there are several."""
        return action.label(self.chunks)

    def __str__(self) -> str:
        rows = [" ".join(map(self.label, stage)) for stage in self.stages]
        return "\n".join([self.name, *(f"stage {stage}: {row}" for stage, row in enumerate(rows))])


def peak_held(actions: Iterable[Action]) -> int:
    """How many activations one stage holds at most while it does these actions in this order."""
    held = peak = 0
    for action in actions:
        held += 1 if action.kind == "F" else -1
        peak = max(peak, held)
    return peak


def naive(stages: int, micro_batches: int = 1, chunks: int = 1) -> Schedule:
    """Each micro-batch goes all the way forward and back before the next one starts.

    With one chunk, one stage works at a time, and the bubble is (stages-1)/stages for any number of micro-batches.
    With several chunks a stage passes each one on as it is done, so that the stages overlap within a micro-batch.
    """
    _check_sizes(stages, micro_batches, chunks)
    row = _taking_turns(*_whole_micro_batches(micro_batches, chunks), ahead=1)
    return Schedule("naive", (row,) * stages, micro_batches, chunks)


def gpipe(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """All forwards, then all backwards: every stage holds every micro-batch.

    The backwards begin with the first micro-batch, as in `torch.distributed.pipelining`, so that the two can be
    compared action by action. The paper draws the last one first: time and memory are the same.
    """
    _check_sizes(stages, micro_batches, chunks)
    row = _taking_turns(*_whole_micro_batches(micro_batches, chunks), ahead=micro_batches)
    return Schedule("gpipe", (row,) * stages, micro_batches, chunks)


def one_f_one_b(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """One forward, one backward in turn, as soon as a stage can: stage s holds at most stages-s micro-batches.

    What takes turns is a whole micro-batch: its chunks in order forward, in reverse order backward.
    """
    _check_sizes(stages, micro_batches, chunks)
    work = _whole_micro_batches(micro_batches, chunks)
    rows = tuple(_taking_turns(*work, ahead=stages - stage) for stage in range(stages))
    return Schedule("1f1b", rows, micro_batches, chunks)


def wavefront(stages: int, micro_batches: int = 1, chunks: int = 8) -> Schedule:
    """The chunks of a sequence flow through the stages as micro-batches do: one micro-batch is enough to fill them.

    This is 1F1B in which single chunks take turns. The first backward is that of a *last* chunk, so the last stage must
    go chunks-1 forwards further ahead than in 1F1B, and so must all others: stage s holds at most
    chunks-1 + stages-s chunks, where 1F1B holds (stages-s) * chunks. That is enough to keep every stage busy:
    for equal costs the bubble is (stages-1)/(micro_batches*chunks + stages-1). With one chunk it *is* 1F1B.
    It leaves nothing to spare: where links are slow, each turn waits for them, which `one_f_one_b` with chunks hides.
    """
    _check_sizes(stages, micro_batches, chunks)
    work = _whole_micro_batches(micro_batches, chunks)
    forwards, backwards = ([[one] for unit in units for one in unit] for units in work)
    rows = tuple(_taking_turns(forwards, backwards, ahead=chunks - 1 + stages - stage) for stage in range(stages))
    return Schedule("wavefront", rows, micro_batches, chunks)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "wavefront": wavefront,
}

Units = list[list[Action]]  # what takes turns: whole micro-batches, or single chunks


def _whole_micro_batches(micro_batches: int, chunks: int) -> tuple[Units, Units]:
    """The forwards and the backwards, a list of chunks for each micro-batch."""
    forwards = [[Action("F", m, c) for c in range(chunks)] for m in range(micro_batches)]
    backwards = [[Action("B", m, c) for c in reversed(range(chunks))] for m in range(micro_batches)]
    return forwards, backwards


def _taking_turns(forwards: Units, backwards: Units, ahead: int) -> tuple[Action, ...]:
    """The first `ahead` forwards, then a backward and a forward in turn, until nothing is left."""
    turns = zip_longest(backwards, forwards[ahead:], fillvalue=[])
    return tuple(chain(*forwards[:ahead], *chain.from_iterable(turns)))


def _check_sizes(stages: int, micro_batches: int, chunks: int) -> None:
    for name, value in (("stages", stages), ("micro_batches", micro_batches), ("chunks", chunks)):
        if value < 1:
            raise ValueError(f"{name}={value}: a schedule needs at least one")


def dependencies(action: Action, stage: int, schedule: Schedule) -> list[Step]:
    """What must be done before `stage` can do `action`, by which stage. Another stage's work comes over a link."""
    own = [(stage, needed) for needed in own_needs(action, schedule.chunks)]
    giver = giver_of(action, stage, len(schedule.stages))
    return own if giver is None else [*own, (giver, action)]


@lru_cache(maxsize=4096)  # asked for every action of every stage of every schedule that a planner tries
def own_needs(action: Action, chunks: int) -> tuple[Action, ...]:
    """What the stage itself must have done before `action`."""
    kind, m, c = action.kind, action.micro_batch, action.chunk
    if kind == "F":
        return (Action("F", m, c - 1),) if c else ()
    return (Action("F", m, c), Action("B", m, c + 1)) if c < chunks - 1 else (Action("F", m, c),)


def giver_of(action: Action, stage: int, stages: int) -> int | None:
    """The stage that must have done the same action before, and sends what comes of it; None where there is none."""
    giver = stage - 1 if action.kind == "F" else stage + 1
    return giver if 0 <= giver < stages else None


def check(schedule: Schedule) -> None:
    """Refuse, with the reason, a schedule that stages could not execute; a legal one passes in silence."""
    checked_order(schedule)


def checked_order(schedule: Schedule) -> list[Step]:
    """The steps of a legal schedule in an order in which they can be done; another one is refused, with the reason."""
    if not any(schedule.stages):
        raise IllegalSchedule("there is nothing to do: a schedule needs a stage, and a stage a forward and a backward")
    every = _everything(schedule)
    for stage in range(len(schedule.stages)):
        _check_completeness(stage, schedule, every)
    for stage in range(len(schedule.stages)):
        _check_order(stage, schedule)
    return in_running_order(schedule)


def in_running_order(schedule: Schedule) -> list[Step]:
    """Every step after all that it needs: an order in which one process could do the work of all stages."""
    done, heads = as_far_as_it_goes(schedule)
    if len(done) < sum(map(len, schedule.stages)):
        raise IllegalSchedule(_describe_circle(schedule, heads))
    return done


def as_far_as_it_goes(schedule: Schedule) -> tuple[list[Step], list[int]]:
    """The steps that can be done, in such an order, and how many of its actions each stage gets done."""
    order: list[Step] = []
    done: list[set[Action]] = [set() for _ in schedule.stages]
    heads = [0] * len(schedule.stages)
    before = -1
    while len(order) > before:
        before = len(order)
        for stage, actions in enumerate(schedule.stages):
            for action in actions[heads[stage] :]:
                giver = giver_of(action, stage, len(done))
                if giver is not None and action not in done[giver]:
                    break
                if not done[stage].issuperset(own_needs(action, schedule.chunks)):
                    break
                done[stage].add(action)
                order.append((stage, action))
                heads[stage] += 1
    return order, heads


def _check_completeness(stage: int, schedule: Schedule, every: dict[Action, None]) -> None:
    """Everything there is to do is done on this stage, once."""
    counts = Counter(schedule.stages[stage])
    once = "every stage does each forward and each backward once"
    for action, times in counts.items():
        if action not in every:
            sizes = f"micro_batches={schedule.micro_batches} and chunks={schedule.chunks}, counted from 0"
            raise IllegalSchedule(f"stage {stage} does {action}, which is not there: the schedule has {sizes}")
        if times > 1:
            raise IllegalSchedule(f"stage {stage} does {schedule.label(action)} {times} times: {once}")
    for action in every:
        if action not in counts:
            others = [other for other, actions in enumerate(schedule.stages) if action in actions]
            doing = f", but stage {others[0]} does" if others else ""
            raise IllegalSchedule(f"stage {stage} never does {schedule.label(action)}{doing}: {once}")


def _everything(schedule: Schedule) -> dict[Action, None]:
    units = chain(*_whole_micro_batches(schedule.micro_batches, schedule.chunks))
    return dict.fromkeys(chain.from_iterable(units))


def _check_order(stage: int, schedule: Schedule) -> None:
    """What an action needs of its own stage comes before it."""
    done: set[Action] = set()
    for action in schedule.stages[stage]:
        for needed in own_needs(action, schedule.chunks):
            if needed not in done:
                early, late = schedule.label(action), schedule.label(needed)
                raise IllegalSchedule(f"stage {stage} does {early} before {late}: {_why(action, needed)}")
        done.add(action)


def _why(action: Action, needed: Action) -> str:
    if action.kind != needed.kind:
        return "a backward needs what its forward kept"
    if action.kind == "F":
        return "a chunk starts in the state in which the chunk before it ended"
    return "the gradient of the state comes from the chunk after it"


def _describe_circle(schedule: Schedule, heads: list[int]) -> str:
    """Where nobody can go on, two neighbours wait for each other: one with a backward, the next with a forward."""
    rows = enumerate(zip(schedule.stages, heads, strict=True))
    waiting = {stage: actions[head] for stage, (actions, head) in rows if head < len(actions)}
    stage = next(s for s in waiting if s + 1 in waiting and (waiting[s].kind, waiting[s + 1].kind) == ("B", "F"))
    backward, forward = schedule.label(waiting[stage]), schedule.label(waiting[stage + 1])
    return (
        f"this order deadlocks: stage {stage} waits with {backward} for stage {stage + 1}'s {backward}, "
        f"which stage {stage + 1} does after {forward}, which waits for stage {stage}'s {forward}, "
        f"which comes after {backward}"
    )
