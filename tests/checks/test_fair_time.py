"""Time that is fair: what a busy machine takes from an answer costs it nothing, and a clock alone costs no point."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib.checks.catalog import exercises
from course_lib.checks.inside.observe import Outcome, observe
from course_lib.checks.inside.runner import END
from course_lib.checks.judging import assess
from course_lib.grading import runs, sandbox
from course_lib.grading.grader import Grader
from course_lib.grading.judge import judge
from course_lib.grading.limits import Limits
from course_lib.grading.records import Mark
from course_lib.grading.runs import Runs
from course_lib.grading.submissions import find_submissions
from course_lib.runtime.patience import FairTime, Patience
from tests.checks.class_of import EXERCISE, SOLUTION, busy, hand_in, need_a_sandbox, with_first_cell

needs_schedstat = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not tell who waits for a core"
)


def call(answer, **inputs):
    return answer(**inputs)


@pytest.mark.slow
@needs_schedstat
def test_on_a_core_shared_with_three_others_the_time_of_the_others_does_not_count():
    core = min(os.sched_getaffinity(0))
    work = f"import os, time\nos.sched_setaffinity(0, [{core}])\nwhile time.process_time() < 0.3: pass"
    with busy(3, core):
        worker = subprocess.Popen([sys.executable, "-S", "-c", work])
        began, clock = time.monotonic(), FairTime(Patience(1e9, 1e9, 1e9), lambda: [worker.pid])
        while worker.poll() is None:
            clock.over()
            time.sleep(0.02)
        took = time.monotonic() - began
    assert took > 0.6
    assert clock.seconds < took / 2


@pytest.mark.parametrize(
    ("command", "patience", "says"),
    [
        (["sleep", "1000"], Patience(0.5, cpu=1e9, longest=1e9), "0.5 s"),
        ([sys.executable, "-S", "-c", "while True: pass"], Patience(1e9, cpu=0.2, longest=1e9), "0.2 s of CPU time"),
    ],
)
def test_time_and_processor_time_have_limits_and_it_is_known_who_slept(command, patience, says):
    process = subprocess.Popen(command)
    clock = FairTime(patience, lambda: [process.pid])
    try:
        while not (spent := clock.over()):
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert spent == says
    assert (clock.slept > 0.4) == (command[0] == "sleep")


def computes_for(seconds):
    while time.process_time() < seconds:
        pass
    return dist.get_rank()


@needs_schedstat
def test_right_answers_need_no_more_of_their_time_on_a_busy_machine():
    """The quick neighbor of a whole class beside four spinning processes."""
    assert observe(call, computes_for, 2, {"seconds": 0}, timeout=20.0).kind == "returned"  # the server has started
    with busy(4):
        began = time.monotonic()
        outcome = observe(call, computes_for, 2, {"seconds": 0.4}, timeout=1.5)
        took = time.monotonic() - began
    assert outcome.kind == "returned", f"{outcome.shown} ({took:.1f} s)"


def sleeps():
    time.sleep(1000)


def spins():
    while True:
        pass


def waits_beside_a_thread():
    """Who has another thread might be helped by it: that it waits forever cannot be proven."""
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    dist.recv(torch.zeros(1), 1 - dist.get_rank())


@pytest.mark.slow
@pytest.mark.parametrize("answer", [sleeps, spins])
def test_one_rank_is_never_told_that_ranks_wait_for_each_other(answer):
    outcome = observe(call, answer, 1, {}, timeout=0.5)
    assert outcome.kind == "slow"
    assert "wait" not in outcome.shown
    assert "not finished after" in outcome.shown


def test_ranks_that_wait_for_each_other_are_stuck_and_those_at_work_are_slow():
    assert observe(call, waits_beside_a_thread, 2, {}, timeout=0.5).kind == "stuck"
    assert observe(call, sleeps, 2, {}, timeout=0.5).kind == "slow"


SLOW = b'{"number": "02.1", "case": 0, "outcome": {"kind": "slow", "values": []}}'
RETURNED = b'{"number": "02.1", "case": 0, "outcome": {"kind": "returned", "values": []}}'
OTHER = b'{"number": "02.2", "case": 0, "outcome": {"kind": "raised", "values": []}}'
CELL = b'{"cell": 3, "error": "TimeoutError", "line": 1, "by_clock": true}'


def scripted(monkeypatch, *results: sandbox.SandboxResult) -> list:
    """Let sandboxes end like this, one after the other; returns what each was given."""
    given, left = [], list(results)

    def run(submission, limits, **_):
        given.append((submission, limits))
        return left.pop(0)

    monkeypatch.setattr(sandbox, "run", run)
    return given


def run_02(limits: Limits) -> sandbox.SandboxResult:
    ours = [each for each in exercises().values() if each.lesson == "02"]
    return Runs(3, limits).run([], ours, {each.number: [] for each in ours})


def test_a_case_that_a_clock_stopped_is_run_again_alone_and_longer(monkeypatch):
    given = scripted(monkeypatch, sandbox.SandboxResult([SLOW, OTHER, END]), sandbox.SandboxResult([RETURNED, END]))
    result = run_02(Limits())
    (first, limits), (second, longer) = given
    assert [task.number for task in first.tasks] == ["02.1", "02.2", "02.3", "02.4"]
    assert [task.number for task in second.tasks] == ["02.1"]
    assert second.timeout == runs.ALONE * first.timeout
    assert longer.seconds == runs.ALONE * limits.seconds
    assert result.lines == [SLOW, OTHER, END, RETURNED, END], "the second line for a case counts"
    assert not result.by_clock


@pytest.mark.parametrize(
    "first", [sandbox.SandboxResult([OTHER], "it ran for more than 60 s", True), sandbox.SandboxResult([CELL, END])]
)
def test_a_submission_that_a_clock_stopped_is_run_again_as_a_whole_and_flagged_if_that_is_stopped_too(
    monkeypatch, first
):
    given = scripted(monkeypatch, first, sandbox.SandboxResult([RETURNED, END]))
    result = run_02(Limits())
    assert (len(given[1][0].tasks), result.lines, result.by_clock) == (4, [RETURNED, END], False)
    scripted(monkeypatch, first, first)
    assert run_02(Limits()).by_clock


@pytest.mark.parametrize(
    "first",
    [
        sandbox.SandboxResult([RETURNED, OTHER, END]),
        sandbox.SandboxResult([SLOW, OTHER], "it ran for more than 60 s", True, rested=True),
    ],
)
def test_what_no_clock_has_stopped_and_what_has_slept_is_run_once(monkeypatch, first):
    """It would sleep again: no machine is too busy for that."""
    given = scripted(monkeypatch, first)
    assert run_02(Limits()).by_clock == first.by_clock
    assert len(given) == 1


@pytest.mark.slow
def test_a_mark_that_a_clock_decided_is_flagged_and_tried_again_when_that_is_asked_for(tmp_path, monkeypatch):
    hand_in(tmp_path / "in", "ada", SOLUTION)
    stopped = sandbox.SandboxResult([], "it ran for more than 60 s", True)
    given = scripted(monkeypatch, *[stopped] * 4)
    for flagged, times in ((False, 2), (False, 2), (True, 4)):
        (record,) = Grader(tmp_path / "out").grade(find_submissions(tmp_path / "in"), flagged=flagged)
        assert record.flagged
        assert record.stopped_by_clock
        assert len(given) == times


def test_a_part_that_was_lost_to_a_clock_is_named():
    exercise, slow = exercises()["02.1"], Outcome("slow", states=(("running", "", ""),))
    cases = exercise.cases(1)
    report = assess(exercise, cases, lambda _: slow)
    assert all("loop that does not end" in finding.cause for finding in report.findings.values())
    line = json.dumps({"number": exercise.number, "case": 0, "outcome": dataclasses.asdict(slow)})
    lines = [line.replace('"case": 0', f'"case": {place}').encode() for place in range(len(cases))]
    seen = judge([exercise.number], pickle.dumps({exercise.number: cases}), [], lines, "")
    (mark,) = (Mark(**fields) for fields in seen["marks"])
    assert mark.by_clock == list(exercise.parts)
    assert mark.points == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_class_beside_four_spinning_processes_earns_everything_and_the_same_again(tmp_path):
    need_a_sandbox()
    for student in ("ada", "ben"):
        hand_in(tmp_path / "in", student, SOLUTION)
    for attempt in range(2):
        with busy(4):
            records = Grader(tmp_path / f"out{attempt}", jobs=4).grade(find_submissions(tmp_path / "in"))
        assert [(r.notebook, r.student, r.most - r.points) for r in records if r.points != r.most] == []
        assert not any(record.flagged for record in records)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_neighbor_with_150_spinning_processes_costs_an_honest_student_nothing(tmp_path):
    need_a_sandbox()
    spins = "import os\nfor _ in range(150):\n    if os.fork() == 0:\n        while True: pass\nwhile True: pass"
    hand_in(tmp_path / "in", "ada", SOLUTION)
    hand_in(tmp_path / "in", "eve", with_first_cell(EXERCISE, spins))
    grader = Grader(tmp_path / "out", jobs=2)
    grader.runs.limits = dataclasses.replace(Limits(), seconds=12)
    ada, eve = grader.grade(find_submissions(tmp_path / "in"))
    assert (ada.points, ada.flagged) == (15, False)
    assert eve.points == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_where_ranks_are_spawned_our_own_solutions_earn_everything(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_LIB_START_METHOD", "spawn")
    hand_in(tmp_path / "in", "ada", SOLUTION)
    (record,) = Grader(tmp_path / "out", sandboxed=False).grade(find_submissions(tmp_path / "in"))
    assert (record.points, record.problem) == (15, "")
