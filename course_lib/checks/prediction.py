"""A question to answer before a run: its choices, and the misconception behind each wrong one.

Each lesson has its questions in `lessons/lesson_NN/predictions.toml`; `read_predictions` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.checks.texts import check_table, one_line, read_tables

LETTERS = "abcdefgh"
# The keys of predictions.toml, and what each one holds.
QUESTION = {"number": str, "question": str, "choice": list, "typed": bool, "unit": str, "tolerance": (int, float)}
CHOICE = {"says": str, "value": (bool, int, float, str, list, dict), "believes": str, "why": str}
BETWEEN = {"from": (int, float), "to": (int, float)}


@dataclass(frozen=True)
class Between:
    """Any number from `low` to `high`, for measurements that vary a little between machines."""

    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """One answer. `value` is what the run would pass to `reveal` if the choice were true."""

    says: str
    value: Any
    believes: str = ""  # the name of the misconception; empty for the right choice
    why: str = ""  # why the choice is wrong, or why the right one holds

    @property
    def is_right(self) -> bool:
        return not self.believes


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A question about the run that follows it.

    The run passes the true value to `reveal`; a test compares it with the right choice.

    `typed` asks for a number instead of showing the choices, which then explain some of the possible numbers.
    """

    number: str  # lesson and prediction: 06.1
    question: str
    choices: tuple[Choice, ...]
    typed: bool = False
    unit: str = ""
    tolerance: float = 0.0  # for a number that is typed or passed to `reveal`

    @property
    def lesson(self) -> str:
        return self.number.partition(".")[0]

    @property
    def right(self) -> Choice:
        """The right choice."""
        return next(choice for choice in self.choices if choice.is_right)

    def choice_for(self, value: Any) -> Choice | None:
        """Return the choice that a value supports, if any."""
        return next((choice for choice in self.choices if fits(choice.value, value, self.tolerance)), None)

    def answer_of(self, said: Any) -> Any:
        """Return an answer in its stored form, a letter or a number. Raises `ValueError` with what is allowed."""
        if not self.typed:
            letters = LETTERS[: len(self.choices)]
            if isinstance(said, str) and said.strip().lower() in tuple(letters):
                return said.strip().lower()
            raise ValueError(f"{said!r}: answer {self.number} with one of the letters {', '.join(letters)}")
        try:
            top, _, bottom = said.partition("/") if isinstance(said, str) else (said, "", "")
            number = float(top) / float(bottom or 1)
        except (TypeError, ValueError, ZeroDivisionError):
            number = float("nan")
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError(f"{said!r}: answer {self.number} with a number")
        return number

    def takes(self, said: Any) -> bool:
        """Return whether this is a valid answer."""
        try:
            self.answer_of(said)
        except ValueError:
            return False
        return True

    def choice_of(self, answer: Any) -> Choice | None:
        """Return the choice behind a stored answer, or None for a number without a choice."""
        return self.choice_for(answer) if self.typed else self.choices[LETTERS.index(answer)]

    def told(self, answer: Any) -> str:
        """Return a stored answer as text."""
        return self.with_unit(f"{answer:g}") if self.typed else f"{answer}) {self.choices[LETTERS.index(answer)].says}"

    def with_unit(self, text: str) -> str:
        """Return a number with its unit: 4 updates, but 1 update. ("1 times as long" keeps its s.)"""
        return f"{text} {self.unit.removesuffix('s') if text == '1' else self.unit}".rstrip()


def fits(expected: Any, value: Any, tolerance: float = 0.0) -> bool:
    """Return whether a value is as expected: numbers within a tolerance or bounds, lists element by element."""
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


def read_predictions(path: Path) -> list[Prediction]:
    """Return the questions of a predictions.toml in order. Raises `ValueError`, which names the file and the key."""
    return [_prediction(each, where) for each, where in read_tables(path, "question")]


def _prediction(table: Any, where: str) -> Prediction:
    check_table(table, QUESTION, ["number", "question", "choice"], where)
    where = f"{where} ({table['number']})"
    typed = table.get("typed", False)
    choices = tuple(_choice(each, typed, f"{where}, choice {place}") for place, each in enumerate(table["choice"], 1))
    if len(choices) > len(LETTERS):
        raise ValueError(f"{where}, choice: there are {len(choices)}, but only {len(LETTERS)} letters")
    if sum(choice.is_right for choice in choices) != 1:
        raise ValueError(f"{where}, believes: every choice needs it except one, the right one")
    return Prediction(
        number=table["number"],
        question=one_line(table["question"]),
        choices=choices,
        typed=typed,
        unit=table.get("unit", ""),
        tolerance=table.get("tolerance", 0.0),
    )


def _choice(table: Any, typed: bool, where: str) -> Choice:
    """Return a choice. A typed choice's text is its number; a wrong choice without a value has the value None."""
    check_table(table, CHOICE, ["why", "value" if typed else "says"], where)
    if "believes" not in table:
        check_table(table, CHOICE, ["value"], where)
    value = _value(table.get("value"), f"{where}, value")
    says = f"{value:g}" if typed and _is_number(value) else one_line(table.get("says", ""))
    return Choice(says, value, one_line(table.get("believes", "")), one_line(table["why"]))


def _value(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        check_table(value, BETWEEN, list(BETWEEN), where)
        return Between(value["from"], value["to"])
    return [_value(each, where) for each in value] if isinstance(value, list) else value
