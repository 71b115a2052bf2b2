"""Our own solutions with one slip of the pen: what does something else is refused, what does the same passes."""

from __future__ import annotations

import pytest

from course_lib.checks.catalog import exercises
from tests.checks.mutants import tally
from tests.checks.tried import CAPSTONE

FEW = 4  # of each exercise, the same ones every time; `python -m tests.checks.mutants` tries all of them


@pytest.mark.slow  # the quicker neighbor: test_bank.py, whose wrong answers have such slips in them
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("exercise", [e for n, e in exercises().items() if n != CAPSTONE], ids=lambda e: e.number)
def test_no_slip_of_the_pen_passes_by_chance(exercise):
    found = tally(exercise, FEW)
    assert not found["survives"]
    assert found["refused"] or found["right"]
