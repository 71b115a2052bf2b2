"""A question that is answered before a run: its choices, and what each wrong one believes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Between:
    """Any number from `low` to `high`: for what a run measures, and another machine measures a little differently."""

    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """One answer. `value` is what the run would hand over if it were true; the right one believes nothing wrong."""

    says: str
    value: Any
    believes: str = ""  # the misconception, by name
    why: str = ""  # it fails; of the right one, why it holds

    @property
    def is_right(self) -> bool:
        return not self.believes


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A question about the run that follows it. The truth is what the run hands to `reveal`; a test compares the two.

    `typed` asks for a number instead of showing the choices, which are then what is known about some numbers.
    """

    number: str  # of the lesson and of the prediction in it: 06.1
    question: str
    choices: tuple[Choice, ...]
    typed: bool = False
    unit: str = ""
    tolerance: float = 0.0  # of a number that is typed, or handed over

    @property
    def lesson(self) -> str:
        return self.number.partition(".")[0]

    @property
    def right(self) -> Choice:
        """The choice that the course holds to be true."""
        return next(choice for choice in self.choices if choice.is_right)

    def choice_for(self, value: Any) -> Choice | None:
        """The choice that a value speaks for, if any does."""
        return next((choice for choice in self.choices if fits(choice.value, value, self.tolerance)), None)

    def answer_of(self, said: Any) -> Any:
        """What somebody said, as it is kept: a letter or a number. Raises `ValueError` with what to say instead."""
        if not self.typed:
            letters = LETTERS[: len(self.choices)]
            if isinstance(said, str) and said.strip().lower() in tuple(letters):
                return said.strip().lower()
            raise ValueError(f"{said!r}: answer {self.number} with one of the letters {', '.join(letters)}")
        try:
            number = float(said)
        except (TypeError, ValueError):
            number = float("nan")
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError(f"{said!r}: answer {self.number} with a number")
        return number

    def takes(self, said: Any) -> bool:
        """Whether this is an answer."""
        try:
            self.answer_of(said)
        except ValueError:
            return False
        return True

    def choice_of(self, answer: Any) -> Choice | None:
        """The choice behind an answer that was kept; None for a number that nobody has foreseen."""
        return self.choice_for(answer) if self.typed else self.choices[LETTERS.index(answer)]

    def told(self, answer: Any) -> str:
        """An answer that was kept, in words."""
        return self.with_unit(f"{answer:g}") if self.typed else f"{answer}) {self.choices[LETTERS.index(answer)].says}"

    def with_unit(self, text: str) -> str:
        return f"{text} {self.unit}".rstrip()


def fits(expected: Any, value: Any, tolerance: float = 0.0) -> bool:
    """Whether a value is what was expected: numbers to a tolerance or within bounds, lists piece by piece."""
    if isinstance(expected, Between):
        return _is_number(value) and expected.low <= value <= expected.high
    if _is_number(expected) and _is_number(value):
        return abs(value - expected) <= tolerance
    if isinstance(expected, (list, tuple)) and isinstance(value, Sequence) and not isinstance(value, str):
        alike = len(expected) == len(value)
        return alike and all(fits(one, other, tolerance) for one, other in zip(expected, value, strict=True))
    return type(expected) is type(value) and expected == value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
