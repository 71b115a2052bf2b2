"""What lesson 10 says of two lists of arrays is true of the worst pair among them."""

from __future__ import annotations

import numpy as np
import pytest

from course_lib.lstm.other_frameworks import closeness

ONES = np.ones((2, 3))


@pytest.mark.parametrize(
    ("off", "said"),
    [(0, "equal to 1e-10"), (3e-8, "equal to 1e-05"), (5e-4, "equal to 1e-03"), (0.02, "differs by 0.020")],
)
def test_the_farthest_number_of_all_arrays_decides(off, said):
    other = ONES.copy()
    other[1, 2] += off
    assert closeness([ONES, ONES, ONES], [ONES, other, ONES]) == said


def test_what_is_not_a_number_is_equal_to_nothing():
    broken = ONES.copy()
    broken[0, 0] = np.nan
    assert closeness([ONES, ONES], [ONES, broken]) == "differs by nan"


def test_arrays_of_other_shapes_are_not_compared_number_by_number():
    assert closeness([ONES], [ONES[:1]]) == "differs in shape: [(2, 3)] and [(1, 3)]"
    with pytest.raises(ValueError, match="shorter"):
        closeness([ONES, ONES], [ONES])
