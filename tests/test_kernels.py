"""Kernels of the tests themselves."""

from __future__ import annotations

import pytest

from tests.kernels import ATTEMPTS, tried_again


@pytest.mark.parametrize("deaths", range(ATTEMPTS + 1))
def test_a_kernel_that_dies_at_once_is_replaced_twice(deaths):
    starts = []

    def start(name):
        starts.append(name)
        if len(starts) <= deaths:
            raise RuntimeError("Kernel died before replying to kernel_info")
        return len(starts)

    if deaths < ATTEMPTS:
        assert tried_again(start)("python3") == deaths + 1
    else:
        with pytest.raises(RuntimeError, match="Kernel died"):
            tried_again(start)("python3")
    assert len(starts) == min(deaths + 1, ATTEMPTS)
