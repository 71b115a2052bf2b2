"""Generated faults: each is noticed, and the rank that deviates is the one that is named.

Eighty broken programs: every fault and every step is among them.
"""

from __future__ import annotations

import pytest

from tests.foreign.faults import cases, judge_all, table

RIGHTLY_NAMED = 0.98  # of two that wait for each other, nobody can always tell who is wrong


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_fault_is_noticed_and_the_right_rank_is_named(capfd, record_property):
    outcomes = list(judge_all(cases(80)))
    capfd.readouterr()  # what the broken ranks have said
    record_property("table", table(outcomes))
    missed = [f"{outcome.case}: {outcome.says}" for outcome in outcomes if not outcome.detected]
    assert not missed, "\n\n".join(missed)
    misnamed = [f"{outcome.case}: {outcome.says}" for outcome in outcomes if not outcome.named]
    assert len(misnamed) <= (1 - RIGHTLY_NAMED) * len(outcomes), "\n\n".join(misnamed)
