"""An exercise: what it asks for, how an answer is tested, and which wrong answers it recognizes.

The test has two halves that never share a process when grading. `drive` runs next to the answer, on the ranks, and
returns what it observed. `judge` has the expected values and decides; it never runs where the answer could see it.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from course_lib.checks.inside.plain import Other
from course_lib.checks.private import Share, inputs_of_rank

# Tolerances at float32 precision, whatever the dtype: relative to the largest expected number, and absolute for zeros.
RELATIVE, ABSOLUTE = 2e-5, 1e-7
EXACT = 1e-12
MOST_SHOWN = 8  # a larger tensor is summarized
T = TypeVar("T")
WORDS = slice(24, 24 + 624 * 8)  # bytes of a generator's state: the words of its Mersenne Twister, 8 bytes each


@dataclass(frozen=True, eq=False)  # == on the tensors in the inputs is not a bool
class Case:
    """One set of inputs. A part of an exercise earns its points if all its cases pass."""

    part: str
    ranks: int
    inputs: dict[str, Any]  # the keyword arguments of `drive`
    says: str  # describes the inputs to the learner


@dataclass(frozen=True)
class Cost:
    """One cost of an answer: what it spent, and the budget the exercise allows.

    No correct answer can spend less than `at_least`, so if one does, grading assumes that it blinded the meter.
    """

    what: str
    spent: float
    budget: float
    at_least: float = 0


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise of a lesson."""

    number: str  # lesson and exercise: 02.1
    title: str
    answer: str  # the name of the function that the learner writes
    level: str
    minutes: int
    parts: dict[str, int]  # the points of each part
    read: str  # the section of the lesson that explains it
    hints: tuple[str, ...]
    cases: Callable[[int], list[Case]]  # made from a seed, smallest first
    drive: Callable[..., Any]  # drive(answer, **inputs), on every rank
    judge: Callable[[Case, list[Any]], str | None]  # returns what is wrong with the ranks' values, or None
    # Each returns whether the ranks' values show one particular mistake, or None if this case can't tell it from
    # another; its docstring is shown to the learner.
    symptoms: tuple[Callable[[Case, list[Any]], bool | None], ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)  # part of an exception's text -> its cause
    costs: Callable[[Case, list[Any]], list[Cost]] | None = None  # called once `judge` accepts the values
    read_in: str = ""  # the lesson with that section, if it's a different one
    read_for: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # part -> lesson and section, if different
    hanging: Callable | None = None  # a wrong answer that hangs, for the tests
    timeout: float = 2.5
    modules: tuple[str, ...] = ()  # slow imports that its ranks need
    shares_files: bool = False  # whether its ranks need a shared folder, for example for a checkpoint
    private: Mapping[str, Share] = field(default_factory=dict)  # inputs that each rank gets only its share of

    @property
    def points(self) -> int:
        return sum(self.parts.values())

    @property
    def lesson(self) -> str:
        return self.number.partition(".")[0]

    def inputs_of(self, case: Case, rank: int) -> dict[str, Any]:
        """Return the inputs of a case that one rank receives when a class is graded."""
        return inputs_of_rank(case.inputs, self.private, rank, case.ranks)

    @property
    def where_to_read(self) -> str:
        """Where the exercise is explained, as text."""
        return self.where_to_read_for("")

    def where_to_read_for(self, part: str) -> str:
        """Return where this part is explained, as text."""
        lesson, section = self.section_for(part)
        return f"lesson {lesson}, “{section}”"

    def section_for(self, part: str) -> tuple[str, str]:
        """Return the lesson that explains this part, and its section's heading."""
        return self.read_for.get(part, (self.read_in or self.lesson, self.read))


def idea(symptom: Callable) -> str:
    """Return a symptom's docstring on one line: what is wrong with the answer, and what would fix it."""
    text = inspect.getdoc(symptom)
    assert text is not None, f"{symptom} has no docstring to show"
    return " ".join(text.split())


def same_as(expected: Callable[[Case], Sequence[Any]], *, name: str = "", exact: bool = False) -> Callable:
    """Return a judge that compares each rank's value with its item in `expected(case)`; messages call it `name`."""

    def judge(case: Case, values: list[Any]) -> str | None:
        for rank, (value, right) in enumerate(zip(values, expected(case), strict=True)):
            difference = differs(value, right, name, exact=exact)
            if difference:
                return f"rank {rank}: {difference}" if case.ranks > 1 else difference
        return None

    return judge


def differs(value: Any, right: Any, name: str = "", *, exact: bool = False) -> str | None:
    """Return how `value` differs from `right`, as a sentence, or None if it doesn't.

    A list equals a tuple, a number equals a one-element tensor, and floating-point dtypes are interchangeable: a value
    only has to be right to float32 precision. `exact` requires the same type and float64 precision.
    """
    label = f"{name} " if name else ""
    if isinstance(right, (list, tuple)):
        return _list_differs(value, right, name, exact)
    if isinstance(right, dict):
        return _dict_differs(value, right, name, exact)
    if isinstance(right, Tensor):
        return _tensor_differs(value, right, label, exact)
    if isinstance(value, Tensor) and value.numel() == 1 and not exact:
        value = value.item()
    if type(right) in (int, float) and isinstance(value, (int, float)) and type(value) is not bool:
        return _number_differs(value, right, label, exact)
    same = type(value) is type(right) and value == right
    return None if same else f"{label}is {show(value)}, it should be {show(right)}"


def _number_differs(value: float, right: float, label: str, exact: bool) -> str | None:
    whole = isinstance(right, int)
    if value == right and (not exact or type(value) is type(right)):
        return None
    if not whole and math.isfinite(value) and abs(value - right) <= _tolerance(abs(right), exact):
        return None
    if value == right:
        return f"{label}is the {type(value).__name__} {value}, it should be the {type(right).__name__} {right}"
    return f"{label}is {_digits(value, right)}, it should be {_digits(right, value)}"


def _tolerance(largest: float, exact: bool) -> float:
    return EXACT * max(1.0, largest) if exact else RELATIVE * largest + ABSOLUTE


def _digits(value: float, other: float) -> str:
    """Return a number with enough digits to distinguish it from the other."""
    texts = (f"{value:.{digits}g}" for digits in range(6, 18) if f"{value:.{digits}g}" != f"{other:.{digits}g}")
    return next(texts, repr(value))


def _list_differs(value: Any, right: Sequence, name: str, exact: bool) -> str | None:
    label = f"{name} " if name else ""
    if isinstance(value, Tensor) and value.dim() and not exact:
        value = list(value) if len(value) == len(right) else value.tolist()
    if not isinstance(value, list):
        return f"{label}is {show(value)}, it should be {_list_of(len(right))}"
    if len(value) != len(right):
        return f"{label}is {_list_of(len(value))}, it should be {_list_of(len(right))}"
    items = enumerate(zip(value, right, strict=True))
    found = (differs(item, right_item, f"{name}[{index}]", exact=exact) for index, (item, right_item) in items)
    return next(filter(None, found), None)


def _list_of(items: int) -> str:
    return f"a list of {items}" if items else "an empty list"


def _dict_differs(value: Any, right: dict, name: str, exact: bool) -> str | None:
    label = f"{name} " if name else ""
    if not isinstance(value, dict) or value.keys() != right.keys():
        return f"{label}is {show(value)}, it should be a dict with the keys {', '.join(map(repr, right))}"
    found = (differs(value[key], right[key], f"{name}[{key!r}]" if name else str(key), exact=exact) for key in right)
    return next(filter(None, found), None)


def _tensor_differs(value: Any, right: Tensor, label: str, exact: bool) -> str | None:
    if not exact and right.numel() == 1 and type(value) in (int, float):
        value = torch.tensor(value).reshape(right.shape)
    if not isinstance(value, Tensor):
        return f"{label}is {show(value)}, it should be a tensor of shape {tuple(right.shape)}"
    if value.shape != right.shape:
        return f"{label}has shape {tuple(value.shape)}, it should have {tuple(right.shape)}"
    alike = value.dtype == right.dtype or (not exact and value.dtype.is_floating_point == right.dtype.is_floating_point)
    if not alike:
        return f"{label}is of {value.dtype}, it should be of {right.dtype}"
    if not value.numel():
        return None
    off = (value.double() - right.double()).abs().nan_to_num(nan=float("inf"))
    off[(value == right) | (value.isnan() & right.isnan())] = 0.0  # symptoms compare against expected nan and inf, too
    finite = right.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    if off.max() <= _tolerance(finite.max().item(), exact):
        return None
    if right.numel() > MOST_SHOWN:
        where = tuple(int(place) for place in torch.unravel_index(off.argmax(), off.shape))
        it, should = value[where].item(), right[where].item()
        there = f"at {list(where)} it is {_digits(it, should)}, it should be {_digits(should, it)}"
        return f"{label}is off by up to {off.max():.3g}: {there}"
    return f"{label}is {_show_beside(value, right)}, it should be {_show_beside(right, value)}"


def _show_beside(value: Tensor, other: Tensor) -> str:
    """Return the numbers as text, each with enough digits to distinguish it from its counterpart in `other`."""
    if not value.is_floating_point():
        return show(value)
    if value.dim() > 1:
        return f"[{', '.join(map(_show_beside, value, other))}]"
    texts = map(_short, value.flatten().tolist(), other.flatten().tolist())
    return f"[{', '.join(texts)}]" if value.dim() else next(texts)


def _short(value: float, other: float) -> str:
    text = f"{value + 0.0:.4g}"  # not -0
    close = abs(value - other) <= _tolerance(abs(other), exact=False)
    return text if close or text != f"{other:.4g}" else _digits(value, other)


def show(value: Any) -> str:
    """Return a short text for a value."""
    if isinstance(value, Tensor):
        if value.numel() > MOST_SHOWN:
            return f"a tensor of shape {tuple(value.shape)}"
        return str([round(number, 4) if isinstance(number, float) else number for number in value.flatten().tolist()])
    if isinstance(value, Other):
        return f"a {value.kind}"
    text = f"{value:.6g}" if type(value) is float else repr(value)
    return text if len(text) <= 200 else text[:200] + " ..."


def draw(make: Callable[[random.Random], T], count: int, seed: int) -> list[T]:
    """Return up to `count` different results of `make`, smallest first; a seed gives the same ones on every machine.

    (hypothesis also draws from the constants of the loaded modules, so its examples vary between machines.)
    """
    found: dict[str, T] = {}
    chance = random.Random(seed)
    for _ in range(20 * count):
        made = make(chance)
        found.setdefault(repr(made), made)
        if len(found) == count:
            break
    return [found[text] for text in sorted(found, key=lambda text: (len(text), text))]


def seeded(seed: int) -> torch.Generator:
    """Return a random generator for inputs. It uses all bits of the seed; `manual_seed` uses only the lowest 32."""
    generator = torch.Generator().manual_seed(seed % 2**32)
    if seed >= 2**32:
        state, chance = generator.get_state(), random.Random(seed)
        state[WORDS].view(torch.int64).copy_(torch.tensor([chance.getrandbits(32) for _ in range(624)]))
        generator.set_state(state)
    return generator
