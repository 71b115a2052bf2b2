"""Both banks: every wrong answer is refused for its true cause, every right one passes in full."""

from __future__ import annotations

import re

import pytest

from course_lib.checks.catalog import exercises
from course_lib.checks.exercise import Exercise
from course_lib.grading.grader import SEED as GRADING_SEED
from tests.checks.bank import Banked, banked
from tests.checks.tried import cases_of, report_on, try_together

pytestmark = pytest.mark.slow

all_exercises = pytest.mark.parametrize("exercise", exercises().values(), ids=list(exercises()))
NOT_THEIRS = r"Traceback|site-packages|torch/|course_lib/|/\w+/\w+\.py"  # frames and paths that nobody asked for


def entries(exercise: Exercise, is_right: bool) -> list[Banked]:
    return [each for each in banked(exercise.number) if each.is_right is is_right]


@pytest.mark.core
@all_exercises
def test_the_banks_are_filled(exercise):
    for is_right, least in ((False, 8), (True, 3)):
        names = [each.name for each in entries(exercise, is_right)]
        assert len(set(names)) == len(names) >= least
    assert all(each.says for each in entries(exercise, is_right=False))


@all_exercises
def test_a_right_answer_passes_however_it_is_written(exercise):
    ours = entries(exercise, is_right=True)
    both = [case for seed in (1, GRADING_SEED) for case in cases_of(exercise.number, seed)]
    try_together(exercise, [each.answer for each in ours], both)
    for seed in (1, GRADING_SEED):
        for each in ours:
            report = report_on(exercise, each.answer, seed)
            assert report.passed, f"seed {seed}, {each.name}: {report}"


@all_exercises
def test_a_wrong_answer_is_refused_for_its_true_cause(exercise):
    ours = entries(exercise, is_right=False)
    try_together(exercise, [each.answer for each in ours], cases_of(exercise.number, 1))
    for each in ours:
        report = report_on(exercise, each.answer)
        assert not report.passed, each.name
        told = re.sub(r"\s+", " ", str(report)).replace(f"tests/checks/bank/lesson_{exercise.lesson}.py", "Cell In[1]")
        assert each.says in told, f"{each.name}: {report}"
        assert not each.never or each.never not in told, f"{each.name}: {report}"
        assert not re.search(NOT_THEIRS, told), f"{each.name}: {report}"


@all_exercises
def test_no_inputs_make_a_wrong_answer_pass(exercise):
    ours = entries(exercise, is_right=False)
    try_together(exercise, [each.answer for each in ours], cases_of(exercise.number, GRADING_SEED))
    for each in ours:
        assert not report_on(exercise, each.answer, GRADING_SEED).passed, each.name
