"""What many answers do in many cases, in few launches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from course_lib.checks.catalog import exercises
from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.inside.observe import Outcome, Trial, observe_many
from course_lib.checks.judging import assess
from course_lib.checks.notebooks import names_of, without_answers
from course_lib.checks.report import Report
from course_lib.runtime.course_files import read

CAPSTONE = "11.1"  # it has no lesson of its own, and a check of it takes as long as ten of the others
ROOT = Path(__file__).resolve().parent.parent.parent
MAKE_GROUPS = ("07", "11")  # lessons whose answers make process groups: hundreds in one launch, with their threads
SOLUTIONS = sorted((ROOT / "solutions").glob("*.ipynb"))


def report_on(exercise: Exercise, answer: Callable, seed: int = 1) -> Report:
    """What a learner is told of this answer, if the cases are made from that seed."""
    cases = cases_of(exercise.number, seed)
    return assess(exercise, cases, outcomes(exercise, answer, cases), after_a_hang=False)


def outcomes(exercise: Exercise, answer: Callable, cases: list[Case]) -> Callable[[int], Outcome]:
    """What the answer does in each of the cases."""
    trial = Trial(exercise.drive, answer, [(case.ranks, case.inputs) for case in cases], exercise.timeout)
    known = _known.get(answer, {})

    def outcome(place: int) -> Outcome:
        seen = known.get(id(cases[place]))
        return seen if seen and seen.kind == "returned" else trial.outcome(place)  # a learner is shown where it raised

    return outcome


_known: dict[Callable, dict[int, Outcome]] = {}  # by answer, and by the id of a case, which is kept below


def try_together(exercise: Exercise, answers: Sequence[Callable], cases: Sequence[Case]) -> None:
    """Try answers that should all come to their end; of those that do not, nothing is known afterwards."""
    if exercise.lesson in MAKE_GROUPS:
        return
    for ranks in sorted({case.ranks for case in cases}):
        ours = [case for case in cases if case.ranks == ranks]
        new = [answer for answer in answers if any(id(case) not in _known.get(answer, {}) for case in ours)]
        for some in [new, *([answer] for answer in new)] if len(new) > 1 else [new]:
            left = [answer for answer in some if any(id(case) not in _known.get(answer, {}) for case in ours)]
            if not left:
                continue
            calls = [(answer, copy.deepcopy(case.inputs)) for answer in left for case in ours]
            seen = observe_many(exercise.drive, calls, ranks, 4 * exercise.timeout, catch=len(left) > 1)
            pairs = ((answer, case) for answer in left for case in ours)
            for (answer, case), outcome in zip(pairs, seen, strict=False):
                _known.setdefault(answer, {})[id(case)] = outcome


@cache
def cases_of(number: str, seed: int) -> list[Case]:
    return exercises()[number].cases(seed)


@cache
def names_in(lesson: str, stubs: bool) -> dict:
    """What a lesson's solutions define, or the stubs made from them."""
    (path,) = (path for path in SOLUTIONS if path.stem.startswith(lesson))
    return names_of(without_answers(read(path)) if stubs else read(path))


def answer_to(exercise: Exercise, stub: bool = False) -> Callable:
    return names_in(exercise.lesson, stub)[exercise.answer]
