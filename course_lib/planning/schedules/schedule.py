"""Who does what in which order: a pipeline schedule is data, one list of actions per stage.

The same object is drawn, simulated and executed. A schedule orders the actions of each stage; *when* an action
starts follows from what it needs (`actions.py`). What comes from another stage comes over a link. A message never
makes its sender wait, and may be received in another order than it was sent in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from course_lib.planning.schedules.actions import (
    Action,
    Held,
    IllegalSchedule,
    Layout,
    Step,
    fullest,
    giver_of,
    held_after_each,
    own_needs,
    why,
)


@dataclass(frozen=True)
class Waiting:
    """A stage that cannot go on: which of its actions waits for which step."""

    stage: int
    action: Action
    needs: Step


def circle_of(waiting: Mapping[int, Waiting]) -> list[Waiting]:
    """The stages that wait for each other in a circle, beginning with the lowest: each waits for the next one."""
    stage = min(waiting)
    seen: list[int] = []
    while stage not in seen:
        seen.append(stage)
        stage = waiting[stage].needs[0]
    circle = seen[seen.index(stage) :]
    first = circle.index(min(circle))
    return [waiting[one] for one in circle[first:] + circle[:first]]


def describe_circle(circle: list[Waiting], label: Callable[[Action], str]) -> str:
    """The circle as a sentence, from the first stage back to it."""
    first = circle[0]
    said = f"this order deadlocks: stage {first.stage} waits with {label(first.action)} for "
    for one, following in zip(circle, [*circle[1:], first], strict=True):
        stage, needed = one.needs
        said += f"stage {stage}'s {label(needed)}, which "
        if following is first:
            return said + f"comes after {label(first.action)}"
        if needed != following.action:
            said += f"stage {stage} does after {label(following.action)}, which "
        said += "waits for "
    return said


Pieces = frozenset[tuple[int, tuple[int, int, int]]]  # (stage, (micro-batch, chunk, virtual stage))


@dataclass(frozen=True)
class Schedule:
    """For each stage its actions, in order. `str` shows them, one stage per line.

    A stage may hold several `virtual` stages; `layout`, "loop" or "v", says which parts of the model they are.
    """

    name: str
    stages: tuple[tuple[Action, ...], ...]
    micro_batches: int
    chunks: int = 1
    virtual: int = 1
    layout: str = "loop"

    @classmethod
    def of(
        cls, stages: Iterable[str | Iterable[Action | str]], name: str = "my schedule", layout: str = "loop"
    ) -> Schedule:
        """A schedule of your own, checked: per stage a text, "F0 F1 B0 B1", or a list of actions or of their names."""
        lists = [stage.split() if isinstance(stage, str) else list(stage) for stage in stages]
        actions = tuple(tuple(map(Action.of, stage)) for stage in lists)
        pieces = [action.piece for action in chain.from_iterable(actions)] or [(0, 0, 0)]
        micro_batches, chunks, virtual = (1 + max(numbers) for numbers in zip(*pieces, strict=True))
        schedule = cls(name, actions, micro_batches, chunks, virtual, layout)
        check(schedule)
        return schedule

    @cached_property
    def places(self) -> Layout:
        """Which part of the model lies where."""
        return Layout(max(1, len(self.stages)), self.virtual, self.layout)

    @property
    def pieces(self) -> int:
        """Into how many pieces the forward pass of each stage is cut."""
        return self.micro_batches * self.chunks * self.virtual

    @cached_property
    def recomputed(self) -> Pieces:
        """Whose forward pass is made again."""
        return self._pieces_with("R")

    @cached_property
    def split(self) -> Pieces:
        """Whose backward pass leaves the weight gradients to a `W`."""
        return self._pieces_with("W")

    def _pieces_with(self, kind: str) -> Pieces:
        rows = enumerate(self.stages)
        return frozenset((stage, action.piece) for stage, row in rows for action in row if action.kind == kind)

    @cached_property
    def held(self) -> tuple[tuple[Held, ...], ...]:
        """Per stage, how many pieces it holds after each of its actions."""
        return tuple(tuple(held_after_each(actions)) for actions in self.stages)

    @property
    def peak(self) -> tuple[int, ...]:
        """Per stage, for how many pieces activations are held at once: forward done, backward not yet."""
        return tuple(max((int(held.activations) for held in row), default=0) for row in self.held)

    @property
    def peak_for_weights(self) -> tuple[int, ...]:
        """Per stage, how many backward passes wait at once for their weight gradients."""
        return tuple(max((int(held.for_weights) for held in row), default=0) for row in self.held)

    @property
    def peak_share(self) -> tuple[Held, ...]:
        """Per stage, the most it holds at once, of both together, as shares of what the whole batch would take."""
        return tuple(fullest(row).share_of(self.pieces) for row in self.held)

    def with_chunks(self, chunks: int) -> Schedule:
        """The same order of work for a batch that has only the first `chunks` of its chunks.

        Legal if this schedule is: no action needs a later chunk's, except a backward pass that then begins with it.
        """
        if chunks == self.chunks:
            return self
        rows = tuple(tuple(action for action in row if action.chunk < chunks) for row in self.stages)
        return replace(self, stages=rows, chunks=chunks)

    def label(self, action: Action) -> str:
        """How `action` is written in this schedule: with its chunk and its virtual stage where there are several."""
        return action.label(self.chunks, self.virtual)

    def __str__(self) -> str:
        rows = [" ".join(map(self.label, stage)) for stage in self.stages]
        return "\n".join([self.name, *(f"stage {stage}: {row}" for stage, row in enumerate(rows))])


def dependencies(action: Action, stage: int, schedule: Schedule) -> list[Step]:
    """What must be done before `stage` can do `action`, by which stage. Another stage's work comes over a link."""
    again = (stage, action.piece) in schedule.recomputed
    own = [(stage, needed) for needed in own_needs(action, schedule.chunks, again)]
    giver = giver_of(action, stage, schedule.places)
    return own if giver is None else [*own, giver]


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
        waiting = {one.stage: one for one in who_waits(schedule, done, heads)}
        raise IllegalSchedule(describe_circle(circle_of(waiting), schedule.label))
    return done


def as_far_as_it_goes(schedule: Schedule) -> tuple[list[Step], list[int]]:
    """The steps that can be done, in such an order, and how many of its actions each stage gets done."""
    order: list[Step] = []
    done: set[Step] = set()
    heads = [0] * len(schedule.stages)
    before = -1
    while len(order) > before:
        before = len(order)
        for stage, actions in enumerate(schedule.stages):
            for action in actions[heads[stage] :]:
                if not done.issuperset(dependencies(action, stage, schedule)):
                    break
                done.add((stage, action))
                order.append((stage, action))
                heads[stage] += 1
    return order, heads


def who_waits(schedule: Schedule, done: Iterable[Step], heads: list[int]) -> list[Waiting]:
    """For each stage that could not go on after these steps, what it waits for."""
    finished, waiting = set(done), []
    for stage, head in enumerate(heads):
        for action in schedule.stages[stage][head : head + 1]:
            missing = [step for step in dependencies(action, stage, schedule) if step not in finished]
            waiting.append(Waiting(stage, action, missing[0]))
    return waiting


def _everything(schedule: Schedule) -> dict[Action, None]:
    """What every stage must do."""
    sizes = schedule.micro_batches, schedule.chunks, schedule.virtual
    pieces = [(m, c, v) for m in range(sizes[0]) for c in range(sizes[1]) for v in range(sizes[2])]
    return dict.fromkeys(Action(kind, *piece) for kind in "FB" for piece in pieces)


def _check_completeness(stage: int, schedule: Schedule, every: dict[Action, None]) -> None:
    """Everything there is to do is done on this stage, once."""
    counts = Counter(schedule.stages[stage])
    once = "every stage does each forward and each backward once"
    for action, times in counts.items():
        if Action("F", *action.piece) not in every:
            sizes = f"micro_batches={schedule.micro_batches} and chunks={schedule.chunks}"
            sizes += f" and virtual={schedule.virtual}" if max(schedule.virtual, action.virtual + 1) > 1 else ""
            raise IllegalSchedule(
                f"stage {stage} does {action}, which is not there: the schedule has {sizes}, counted from 0"
            )
        if times > 1:
            raise IllegalSchedule(f"stage {stage} does {schedule.label(action)} {times} times: {once}")
    for action in every:
        if action not in counts:
            others = [other for other, actions in enumerate(schedule.stages) if action in actions]
            doing = f", but stage {others[0]} does" if others else ""
            raise IllegalSchedule(f"stage {stage} never does {schedule.label(action)}{doing}: {once}")


def _check_order(stage: int, schedule: Schedule) -> None:
    """What an action needs of its own stage comes before it."""
    done: set[Action] = set()
    for action in schedule.stages[stage]:
        for giver, needed in dependencies(action, stage, schedule):
            if giver == stage and needed not in done:
                early, late = schedule.label(action), schedule.label(needed)
                raise IllegalSchedule(f"stage {stage} does {early} before {late}: {why(action, needed)}")
        done.add(action)
