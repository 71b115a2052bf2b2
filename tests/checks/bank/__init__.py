"""Answers that students might write: wrong ones, which must be refused for their true cause, and unusual right ones.

    @wrong("02.3", says="the mean of the ranks' means")
    def averages_of_averages(total, count): ...

    @right("02.3")
    def with_all_gather(total, count): ...

`python -m tests.checks.bank 02.3` prints what the writer of each is told, and how long it takes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Banked:
    """An answer in the bank. What its writer is told must have `says` in it, and must not have `never` in it."""

    number: str
    answer: Callable
    is_right: bool
    says: str = ""
    never: str = ""

    @property
    def name(self) -> str:
        return self.answer.__name__


NEVER_WAITS = "You begin a call and never wait for it"
CHANGES_IN_FLIGHT = "You change a tensor while a call is still using it"
USES_IN_FLIGHT = "A tensor is used before it is filled"

_answers: list[Banked] = []


def wrong(number: str, says: str = "", never: str = "") -> Callable[[Any], Any]:
    """Put a wrong answer into the bank."""

    def register(answer: Any) -> Any:
        _answers.append(Banked(number, answer, is_right=False, says=says, never=never))
        return answer

    return register


def right(number: str) -> Callable[[Any], Any]:
    """Put a right answer into the bank."""

    def register(answer: Any) -> Any:
        _answers.append(Banked(number, answer, is_right=True))
        return answer

    return register


@cache
def banked(number: str) -> list[Banked]:
    """All answers to an exercise that are in the bank."""
    for path in sorted(Path(__file__).parent.glob("lesson_*.py")):
        importlib.import_module(f"tests.checks.bank.{path.stem}")
    return [each for each in _answers if each.number == number]
