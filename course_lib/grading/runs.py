"""Submissions in their sandboxes, some at a time. What a clock has stopped is run once more, alone, and longer."""

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
from course_lib.launchers.local import start_method

TIMEOUT = 6.0  # seconds for one case: many times what an answer needs
ALONE = 3.0  # times as long, for what a clock has stopped
SPAWNED = 10.0  # times as long, where every rank imports torch anew
# What the sandbox writes of a case, and of a cell, that a clock has stopped. Its lines are not trusted: whoever forges
# one is run again, and no more.
SLOW_CASE = re.compile(rb'\{"number": "(\d\d\.\d{1,3})", .{,100}"kind": "slow"')
SLOW_CELL = re.compile(rb'\{"cell": \d+, .{,200}"by_clock": true')


class Runs:
    """Runs submissions, as many at a time as there are slots."""

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
        """Run a submission on these exercises. What a clock has stopped had its second chance."""
        with self._slots:
            first = self._run(cells, ours, cases, 1.0)
        whole, slow = first.by_clock or stopped_cell(first), slow_exercises(first)
        if self.stop.is_set() or not (whole or slow):
            return dataclasses.replace(first, by_clock=whole)
        again = self._run_alone(cells, [each for each in ours if whole or each.number in slow], cases)
        lines = again.lines if whole else first.lines + again.lines  # of two lines for a case, the second counts
        return dataclasses.replace(again, lines=lines, by_clock=again.by_clock or stopped_cell(again))

    def _run_alone(
        self, cells: list[str], ours: Sequence[Exercise], cases: Mapping[str, Sequence[Case]]
    ) -> sandbox.SandboxResult:
        """With all slots in hand: nothing else of this class runs."""
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
        # Where an exercise is given more time for a case, so is the whole.
        seconds = self.limits.seconds + 10 * (timeout - TIMEOUT)
        seconds *= factor * (SPAWNED if start_method() == "spawn" else 1.0)
        limits = dataclasses.replace(self.limits, seconds=seconds)
        submission = Submission(cells, tasks, timeout * factor, modules)
        return sandbox.run(submission, limits, number=next(self._numbers), sandboxed=self.sandboxed, stop=self.stop)


def slow_exercises(result: sandbox.SandboxResult) -> set[str]:
    """The numbers of the exercises of which a clock has stopped a case."""
    found = (SLOW_CASE.match(line, 0, 400) for line in result.lines)
    return {match[1].decode() for match in found if match}


def stopped_cell(result: sandbox.SandboxResult) -> bool:
    """Whether a clock has stopped one of the cells."""
    return any(SLOW_CELL.match(line, 0, 400) for line in result.lines)


def _task(exercise: Exercise, cases: Sequence[Case]) -> Task:
    """An exercise as the sandbox sees it: the inputs of each rank lie apart."""
    settings = [
        (case.part, case.ranks, [pickle.dumps(exercise.inputs_of(case, rank)) for rank in range(case.ranks)])
        for case in cases
    ]
    return Task(exercise.number, exercise.answer, cloudpickle.dumps(exercise.drive), settings)
