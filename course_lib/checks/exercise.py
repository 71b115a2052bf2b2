"""An exercise: what it asks for, how an answer is put to the test, and the wrong answers it knows.

The test has two halves that never meet in one process when grading. `drive` runs beside the answer, on the ranks, and
returns what it saw. `judge` has the expected values and decides; it never runs where the answer could see it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.inside.plain import Other

TOLERANCE = 1e-8
LEVELS = ("warm-up", "exercise", "build")


@dataclass(frozen=True, eq=False)  # tensors in the inputs have no one answer to ==
class Case:
    """One set of inputs. It belongs to a part of the exercise, which earns its points if all its cases pass."""

    part: str
    ranks: int
    inputs: dict[str, Any]  # the keyword arguments of `drive`
    says: str  # the inputs in words, for the learner


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise of a lesson."""

    number: str  # of the lesson and of the exercise in it: 02.1
    title: str
    answer: str  # the name of the function that the learner writes
    level: str
    minutes: int
    parts: dict[str, int]  # points for each
    read: str  # the section of the lesson that explains it
    hints: tuple[str, ...]
    cases: Callable[[int], list[Case]]  # from a seed; smallest first
    drive: Callable[..., Any]  # drive(answer, **inputs), on every rank
    judge: Callable[[Case, list[Any]], str | None]  # what is wrong with the ranks' values, or None
    mistakes: tuple[Callable, ...]  # wrong answers that end; each one's docstring tells the idea that mends it
    hanging: Callable | None = None  # a wrong answer whose ranks wait for ever
    timeout: float = 2.5

    @property
    def points(self) -> int:
        return sum(self.parts.values())

    @property
    def lesson(self) -> str:
        return self.number.partition(".")[0]


def idea(mistake: Callable) -> str:
    """What is wrong with a wrong answer, and what would mend it."""
    text = inspect.getdoc(mistake)
    assert text is not None, f"{mistake} has no docstring to tell it"
    return " ".join(text.split())


def same_as(expected: Callable[[Case], Sequence[Any]], tolerance: float = TOLERANCE) -> Callable:
    """A judge that compares each rank's value with the one that `expected(case)` has for it."""

    def judge(case: Case, values: list[Any]) -> str | None:
        for rank, (value, right) in enumerate(zip(values, expected(case), strict=True)):
            difference = differs(value, right, tolerance)
            if difference:
                return f"rank {rank}: {difference}" if case.ranks > 1 else difference
        return None

    return judge


def differs(value: Any, right: Any, tolerance: float = TOLERANCE, name: str = "") -> str | None:
    """How `value` differs from `right`, as a sentence; None if it does not. Lists and tuples are alike."""
    label = f"{name} " if name else ""
    if isinstance(right, (list, tuple)):
        return _list_differs(value, right, tolerance, name)
    if isinstance(right, dict):
        return _dict_differs(value, right, tolerance, name)
    if isinstance(right, Tensor):
        return _tensor_differs(value, right, tolerance, label)
    if isinstance(right, float) and type(value) in (int, float):
        return None if abs(value - right) <= tolerance else f"{label}is {value:.6g}, it should be {right:.6g}"
    if isinstance(right, float) and isinstance(value, Tensor) and value.numel() == 1:
        return differs(value.item(), right, tolerance, name)
    same = type(value) is type(right) and value == right
    return None if same else f"{label}is {show(value)}, it should be {show(right)}"


def _list_differs(value: Any, right: Sequence, tolerance: float, name: str) -> str | None:
    label = f"{name} " if name else ""
    if not isinstance(value, list):
        return f"{label}is {show(value)}, it should be a list of {len(right)}"
    for index, (item, right_item) in enumerate(zip(value, right, strict=False)):
        difference = differs(item, right_item, tolerance, f"{name}[{index}]")
        if difference:
            return difference
    if len(value) != len(right):
        return f"{label}is a list of {len(value)}, it should be one of {len(right)}"
    return None


def _dict_differs(value: Any, right: dict, tolerance: float, name: str) -> str | None:
    label = f"{name} " if name else ""
    if not isinstance(value, dict) or value.keys() != right.keys():
        return f"{label}is {show(value)}, it should have {', '.join(map(str, right))}"
    found = (differs(value[key], right[key], tolerance, f"{name}[{key!r}]" if name else str(key)) for key in right)
    return next(filter(None, found), None)


def _tensor_differs(value: Any, right: Tensor, tolerance: float, label: str) -> str | None:
    if not isinstance(value, Tensor):
        return f"{label}is {show(value)}, it should be a tensor of shape {tuple(right.shape)}"
    if value.shape != right.shape:
        return f"{label}has shape {tuple(value.shape)}, it should have {tuple(right.shape)}"
    if value.dtype != right.dtype:
        return f"{label}is of {value.dtype}, it should be of {right.dtype}"
    off = (value.double() - right.double()).abs().nan_to_num(nan=float("inf"))
    off[(value == right) | (value.isnan() & right.isnan())] = 0.0  # a mistake is also known by its nan and inf
    if not off.numel() or off.max() <= tolerance:
        return None
    if right.numel() <= 12:
        return f"{label}is {show(value)}, it should be {show(right)}"
    return f"{label}is off by {off.max():.3g} at most"


def show(value: Any) -> str:
    """A value, briefly."""
    if isinstance(value, Tensor):
        if value.numel() > 12:
            return f"a tensor of shape {tuple(value.shape)}"
        return str([round(number, 4) if isinstance(number, float) else number for number in value.flatten().tolist()])
    if isinstance(value, Other):
        return f"a {value.kind}"
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + " ..."


def seeded(seed: int) -> torch.Generator:
    """A source of random inputs."""
    return torch.Generator().manual_seed(seed)
