"""Generated faults: each is noticed, and the rank that deviates is the one that is named.

`make test` breaks a program in every way and at every step at least once; `make test-faults` breaks eighty.
"""

from __future__ import annotations

import pytest

from tests.foreign.faults import EVERYWHERE, IN_THE_CALL, STEPS, cases, judge_all, table

RIGHTLY_NAMED = 0.98  # of two that wait for each other, nobody can always tell who is wrong


def few() -> list:
    """Of the generated cases, some that have every fault and every step in them, and few that end by a time-out."""
    faults, steps = set(EVERYWHERE + IN_THE_CALL), set(STEPS)
    chosen = []
    for case in cases(500):
        if case.fault in faults or (case.step in steps and case.fault in ("skip", "shape", "raise")):
            chosen.append(case)
            faults.discard(case.fault)
            steps.discard(case.step)
    assert not faults
    assert not steps
    return chosen


@pytest.mark.parametrize(
    "chosen",
    [pytest.param(few(), id="of every kind"), pytest.param(cases(80), id="eighty", marks=pytest.mark.slow)],
)
@pytest.mark.timeout(2400)
def test_every_fault_is_noticed_and_the_right_rank_is_named(chosen, capfd, record_property):
    outcomes = list(judge_all(chosen))
    capfd.readouterr()  # what the broken ranks have said
    record_property("table", table(outcomes))
    missed = [f"{outcome.case}: {outcome.says}" for outcome in outcomes if not outcome.detected]
    assert not missed, "\n\n".join(missed)
    misnamed = [f"{outcome.case}: {outcome.says}" for outcome in outcomes if not outcome.named]
    assert len(misnamed) <= (1 - RIGHTLY_NAMED) * len(outcomes), "\n\n".join(misnamed)
