"""Slips of the pen in our own solutions are refused, unless what they make is right as well."""

from __future__ import annotations

import pytest

from course_lib.checks import exercises
from tests.checks.mutants import tally

SAMPLE = 8  # of each exercise's mutants: all of them take half an hour (python -m tests.checks.mutants)


@pytest.mark.slow
@pytest.mark.parametrize("exercise", exercises().values(), ids=list(exercises()))
def test_no_mutant_survives(exercise, record_property):
    found = tally(exercise, SAMPLE)
    assert not found.survivors, [(mutant.change, mutant.line) for mutant in found.survivors]
    assert found.refused, "none of them was refused: can this check refuse anything?"
    record_property("mutants", f"{exercise.number} {len(found.refused)} {len(found.equal)}")
