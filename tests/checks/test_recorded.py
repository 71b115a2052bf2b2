"""What exercise 08.8 is made of: jobs that were run with a fault in them, and can be run again."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from course_lib.checks.catalog import find
from course_lib.lessons.lesson_08 import what_a_job_left
from tests.checks.recorded.__main__ import CAUSES
from tests.checks.tried import answer_to

pytestmark = pytest.mark.slow

RECORD = "import json; from tests.checks.recorded.__main__ import record; print(json.dumps(record('skips', 3, 2)))"


def test_every_recorded_job_tells_who_is_to_blame_however_its_ranks_are_numbered():
    solve = answer_to(find("08.8"))
    jobs = what_a_job_left._recorded_jobs()
    assert {job["fault"] for job in jobs} == set(CAUSES)
    for case in (what_a_job_left._case(random.Random(seed), job) for job in jobs for seed in range(10)):
        assert list(solve(case.inputs["text"])) == list(case.truth[:2]), case.inputs["text"]


def test_a_job_that_is_recorded_anew_has_its_fault_where_it_was_planted():
    run = subprocess.run([sys.executable, "-c", RECORD], capture_output=True, text=True, check=True)
    job = json.loads(run.stdout)
    assert [len(rank["record"].splitlines()) for rank in job["ranks"]] == [6, 6, 5]
    assert (job["guilty"], job["cause"]) == ([2], "fewer")
    assert "done" in job["ranks"][2]["log"]
