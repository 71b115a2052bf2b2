"""A pipeline schedule is data: one list of actions per stage.

The same object is drawn, simulated and executed. A schedule orders the actions of each stage; *when* an action starts
depends on what it needs (see `actions`). Results from other stages come over a link. Sending a message never makes a
stage wait, and messages may be received in a different order than they were sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product

from course_lib.pipeline.actions import (
    Action,
    Held,
    IllegalSchedule,
    Layout,
    Step,
    fullest,
    held_after_each,
    producer_of,
    reason_for,
    same_stage_needs,
)

StagePiece = tuple[int, tuple[int, int, int]]  # (stage, (micro-batch, chunk, virtual stage))


@dataclass(frozen=True)
class Schedule:
    """The actions of each stage, in order. `str` shows them, one stage per line.

    A stage may hold several `virtual` stages; `layout`, "loop" or "v", determines which parts of the model they are.
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
        """Make and check your own schedule: for each stage, a string "F0 F1 B0 B1", or a list of actions or names."""
        lists = [stage.split() if isinstance(stage, str) else list(stage) for stage in stages]
        actions = tuple(tuple(map(Action.of, stage)) for stage in lists)
        pieces = [action.piece for action in chain.from_iterable(actions)] or [(0, 0, 0)]
        micro_batches, chunks, virtual = (1 + max(numbers) for numbers in zip(*pieces, strict=True))
        schedule = cls(name, actions, micro_batches, chunks, virtual, layout)
        check(schedule)
        return schedule

    @cached_property
    def stage_map(self) -> Layout:
        """Which stage holds which part of the model."""
        return Layout(max(1, len(self.stages)), self.virtual, self.layout)

    @property
    def pieces(self) -> int:
        """The number of pieces that each stage's forward pass is cut into."""
        return self.micro_batches * self.chunks * self.virtual

    @cached_property
    def recomputed(self) -> frozenset[StagePiece]:
        """The pieces whose forward pass is recomputed."""
        return frozenset((stage, a.piece) for stage, row in enumerate(self.stages) for a in row if a.kind == "R")

    @cached_property
    def split(self) -> frozenset[StagePiece]:
        """The pieces whose backward pass leaves the weight gradients for a `W`."""
        return frozenset((stage, a.piece) for stage, row in enumerate(self.stages) for a in row if a.kind == "W")

    @cached_property
    def held(self) -> tuple[tuple[Held, ...], ...]:
        """Per stage, how many pieces it holds after each of its actions."""
        return tuple(tuple(held_after_each(actions)) for actions in self.stages)

    @property
    def peak(self) -> tuple[int, ...]:
        """Per stage, the largest number of pieces with activations held at once: forward done, backward not yet."""
        return tuple(max((int(held.activations) for held in row), default=0) for row in self.held)

    @property
    def peak_share(self) -> tuple[Held, ...]:
        """Per stage, the most it holds at once (both kinds added), as a share of what the whole batch would take."""
        return tuple(fullest(row).share_of(self.pieces) for row in self.held)

    def with_chunks(self, chunks: int) -> Schedule:
        """Return the same order of work for a batch that has only the first `chunks` chunks."""
        # It is legal if this one is: only backward passes need a later chunk, and the last one left then needs none.
        if chunks == self.chunks:
            return self
        rows = tuple(tuple(action for action in row if action.chunk < chunks) for row in self.stages)
        return replace(self, stages=rows, chunks=chunks)

    def label(self, action: Action) -> str:
        """Return the label of `action` in this schedule, with its chunk and virtual stage if there are several."""
        return action.label(self.chunks, self.virtual)

    def __str__(self) -> str:
        rows = [" ".join(map(self.label, stage)) for stage in self.stages]
        return "\n".join([self.name, *(f"stage {stage}: {row}" for stage, row in enumerate(rows))])


def dependencies(action: Action, stage: int, schedule: Schedule) -> list[Step]:
    """Return the steps that must be done before `stage` can do `action`. Other stages' results come over a link."""
    is_recomputed = (stage, action.piece) in schedule.recomputed
    same_stage = [(stage, earlier) for earlier in same_stage_needs(action, schedule.chunks, is_recomputed)]
    producer = producer_of(action, stage, schedule.stage_map)
    return same_stage if producer is None else [*same_stage, producer]


def check(schedule: Schedule) -> None:
    """Raise `IllegalSchedule`, with the reason, if the stages could not execute this schedule."""
    checked_order(schedule)


def checked_order(schedule: Schedule) -> list[Step]:
    """Return the steps, each after everything it needs, or raise `IllegalSchedule` with the reason."""
    if not any(schedule.stages):
        raise IllegalSchedule("there is nothing to do: every stage needs at least a forward and a backward")
    sizes = schedule.micro_batches, schedule.chunks, schedule.virtual
    every = dict.fromkeys(Action(kind, *piece) for kind in "FB" for piece in product(*map(range, sizes)))
    for stage in range(len(schedule.stages)):
        _check_completeness(stage, schedule, every)
    for stage in range(len(schedule.stages)):
        _check_order(stage, schedule)
    order, heads = run_until_stuck(schedule)
    if stuck := stuck_stages(schedule, order, heads):
        raise IllegalSchedule(describe_deadlock(stuck, schedule.label))
    return order


def run_until_stuck(schedule: Schedule) -> tuple[list[Step], list[int]]:
    """Return the steps that can run, in an order that works, and how many actions each stage completes."""
    order: list[Step] = []
    finished: set[Step] = set()
    heads = [0] * len(schedule.stages)
    count_before = -1
    while len(order) > count_before:
        count_before = len(order)
        for stage, actions in enumerate(schedule.stages):
            for action in actions[heads[stage] :]:
                if not finished.issuperset(dependencies(action, stage, schedule)):
                    break
                finished.add((stage, action))
                order.append((stage, action))
                heads[stage] += 1
    return order, heads


@dataclass(frozen=True)
class Waiting:
    """A stuck stage: the action that is waiting, and the step that this action needs."""

    stage: int
    action: Action
    needs: Step


def stuck_stages(schedule: Schedule, order: Iterable[Step], heads: list[int]) -> list[Waiting]:
    """Return what each stage that is stuck after these steps is waiting for."""
    finished, waiting = set(order), []
    for stage, head in enumerate(heads):
        for action in schedule.stages[stage][head : head + 1]:
            missing = [step for step in dependencies(action, stage, schedule) if step not in finished]
            waiting.append(Waiting(stage, action, missing[0]))
    return waiting


def describe_deadlock(stuck: Iterable[Waiting], label: Callable[[Action], str]) -> str:
    """Return a sentence on the stages that wait for each other in a cycle, from the lowest one back to it."""
    waiting = {each.stage: each for each in stuck}
    visited, stage = [], min(waiting)
    while stage not in visited:
        visited.append(stage)
        stage = waiting[stage].needs[0]
    cycle = visited[visited.index(stage) :]
    start = cycle.index(min(cycle))
    first, *others = (waiting[stage] for stage in cycle[start:] + cycle[:start])
    sentence = f"this order deadlocks: stage {first.stage} waits with {label(first.action)} for "
    for here, following in zip([first, *others], [*others, None], strict=True):
        stage, needed = here.needs
        sentence += f"stage {stage}'s {label(needed)}, which "
        if following is None:
            break
        if needed != following.action:
            sentence += f"stage {stage} does after {label(following.action)}, which "
        sentence += "waits for "
    return sentence + f"comes after {label(first.action)}"


def _check_completeness(stage: int, schedule: Schedule, every: dict[Action, None]) -> None:
    """Raise `IllegalSchedule` unless this stage does every action exactly once."""
    counts, once = Counter(schedule.stages[stage]), "every stage does each forward and each backward once"
    for action, times in counts.items():
        if Action("F", *action.piece) not in every:
            numbers = f"micro_batches={schedule.micro_batches} and chunks={schedule.chunks}"
            numbers += f" and virtual={schedule.virtual}" if max(schedule.virtual, action.virtual + 1) > 1 else ""
            raise IllegalSchedule(
                f"stage {stage} does {action}, which does not exist: the schedule has {numbers}, counted from 0"
            )
        if times > 1:
            raise IllegalSchedule(f"stage {stage} does {schedule.label(action)} {times} times: {once}")
    for action in every:
        if action not in counts:
            elsewhere = [other for other, actions in enumerate(schedule.stages) if action in actions]
            doing = f", but stage {elsewhere[0]} does" if elsewhere else ""
            raise IllegalSchedule(f"stage {stage} never does {schedule.label(action)}{doing}: {once}")


def _check_order(stage: int, schedule: Schedule) -> None:
    """Raise `IllegalSchedule` if an action precedes something that it needs from the same stage."""
    finished: set[Action] = set()
    for action in schedule.stages[stage]:
        for producer, dependency in dependencies(action, stage, schedule):
            if producer == stage and dependency not in finished:
                early, late = schedule.label(action), schedule.label(dependency)
                raise IllegalSchedule(f"stage {stage} does {early} before {late}: {reason_for(action, dependency)}")
        finished.add(action)
