"""Run submissions in sandboxes, several at a time. One that hits a time limit is rerun alone, with more time.

A submission that slept is not rerun: a busy machine slows down only computing, so it would sleep again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pickle
import re
import threading
from collections.abc import Mapping, Sequence

import cloudpickle

from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.inside.runner import Submission, Task
from course_lib.grading import cgroups, sandbox
from course_lib.grading.limits import Limits
from course_lib.launcher.notebook.launch import start_method

TIMEOUT = 6.0  # seconds per case, many times what an answer needs
ALONE = 3.0  # factor on time limits for a rerun
SPAWNED = 10.0  # factor on time limits with spawn, where every rank imports torch again
# What the sandbox prints for a case or a cell that hit its time limit. The lines are untrusted, but forging one only
# gets the submission rerun.
SLOW_CASE = re.compile(rb'\{"number": "(\d\d\.\d{1,3})", .{,100}"kind": "slow"')
SLOW_CELL = re.compile(rb'\{"cell": \d+, .{,200}"by_clock": true')


class Runs:
    """Runs submissions, `jobs` at a time."""

    def __init__(self, jobs: int, limits: Limits, *, sandboxed: bool = True) -> None:
        self.jobs, self.limits, self.sandboxed = jobs, limits, sandboxed
        self.stop = threading.Event()
        self._numbers = itertools.count()
        self._slots = threading.Semaphore(jobs)
        self._alone = threading.Lock()
        if sandboxed:
            cgroups.sweep_groups()

    def run(
        self, cells: list[str], ours: Sequence[Exercise], cases: Mapping[str, Sequence[Case]]
    ) -> sandbox.SandboxResult:
        """Run a submission on these exercises, and rerun what hit a time limit."""
        with self._slots:
            first = self._run(cells, ours, cases, 1.0)
        whole, slow = first.by_clock or stopped_cell(first), slow_exercises(first)
        if self.stop.is_set() or first.rested or not (whole or slow):
            return dataclasses.replace(first, by_clock=whole)
        again = self._run_alone(cells, [each for each in ours if whole or each.number in slow], cases)
        lines = again.lines if whole else first.lines + again.lines  # if a case has two lines, the last counts
        return dataclasses.replace(again, lines=lines, by_clock=again.by_clock or stopped_cell(again))

    def _run_alone(
        self, cells: list[str], ours: Sequence[Exercise], cases: Mapping[str, Sequence[Case]]
    ) -> sandbox.SandboxResult:
        """Run while holding all slots, so that no other submission of this class runs."""
        with self._alone, contextlib.ExitStack() as slots:
            for _ in range(self.jobs):
                slots.enter_context(self._slots)
            return self._run(cells, ours, cases, ALONE)

    def _run(
        self,
        cells: list[str],
        ours: Sequence[Exercise],
        cases: Mapping[str, Sequence[Case]],
        factor: float,
    ) -> sandbox.SandboxResult:
        tasks = [_task(exercise, cases[exercise.number]) for exercise in ours]
        timeout, modules = max([TIMEOUT, *(e.timeout for e in ours)]), [name for e in ours for name in e.modules]
        # An exercise with a longer timeout per case also gets more time overall.
        seconds = self.limits.seconds + 10 * (timeout - TIMEOUT)
        seconds *= factor * (SPAWNED if start_method() == "spawn" else 1.0)
        limits = dataclasses.replace(self.limits, seconds=seconds)
        submission = Submission(cells, tasks, timeout * factor, modules)
        return sandbox.run(submission, limits, number=next(self._numbers), sandboxed=self.sandboxed, stop=self.stop)


def slow_exercises(result: sandbox.SandboxResult) -> set[str]:
    """Return the numbers of the exercises that had a case hit its time limit."""
    found = (SLOW_CASE.match(line, 0, 400) for line in result.lines)
    return {match[1].decode() for match in found if match}


def stopped_cell(result: sandbox.SandboxResult) -> bool:
    """Whether a cell hit its time limit."""
    return any(SLOW_CELL.match(line, 0, 400) for line in result.lines)


def _task(exercise: Exercise, cases: Sequence[Case]) -> Task:
    """Return an exercise as the sandbox sees it, with the inputs pickled separately for each rank."""
    settings = [
        (case.part, case.ranks, [pickle.dumps(exercise.inputs_of(case, rank)) for rank in range(case.ranks)])
        for case in cases
    ]
    return Task(exercise.number, exercise.answer, cloudpickle.dumps(exercise.drive), settings, exercise.shares_files)
