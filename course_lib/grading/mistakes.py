"""What the known mistakes do in the cases of a class: launched once for all submissions, in a child of the grader."""

from __future__ import annotations

import pickle
import threading
from dataclasses import asdict
from typing import Any

from course_lib.checks import exercises
from course_lib.checks.exercise import Case
from course_lib.checks.judging import wrong_answers
from course_lib.grading.children import Ask, Child


class Mistakes:
    """Remembers, for each case of a class, what the exercise's known mistakes do in it."""

    def __init__(self, cases: dict[str, list[Case]], stop: threading.Event) -> None:
        self._cases, self._child = cases, Child(stop, allowance=None)
        self._known: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._launching = threading.Lock()

    def outcomes(self, number: str, place: int) -> list[dict[str, Any]]:
        """In this case of this exercise, as `asdict` writes outcomes. After an interrupt, nothing is launched."""
        with self._launching:
            if (number, place) not in self._known:
                case = pickle.dumps(self._cases[number][place])
                self._known[number, place] = self._child.do(launch_mistakes, number, case)
            return self._known[number, place]

    def end(self) -> None:
        """Leave nothing running; what is known stays."""
        self._child.end()


def launch_mistakes(_: Ask, number: str, case: bytes) -> list[dict[str, Any]]:
    """Run in the child: our own code, on our own inputs."""
    exercise = exercises()[number]
    return [asdict(outcome) for outcome in wrong_answers(exercise)(pickle.loads(case))]
