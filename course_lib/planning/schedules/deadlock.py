"""Stages that wait for each other: who waits for whom, told as a circle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from course_lib.planning.schedules.actions import Action, Step


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
