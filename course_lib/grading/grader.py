"""Grade a class: every submission in a sandbox, a page for each student, a table for all of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import queue
import secrets
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle

from course_lib.checks import exercises
from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.runner import END, Submission, Task
from course_lib.checks.judging import Finding, assess, wrong_answers
from course_lib.checks.notebooks import BadNotebook, code_of, parse
from course_lib.grading import sandbox
from course_lib.grading.gradebook import check_gradebook, write_gradebook
from course_lib.grading.pages import write_pages
from course_lib.grading.records import Mark, Record
from course_lib.grading.submissions import BadSubmissions, SubmittedNotebook, find_submissions
from course_lib.version import __version__

SEED = 20  # of the inputs in tests; a class gets its own
TIMEOUT = 6.0  # seconds for one case: many times what an answer needs, also on a busy machine
LONGEST_LINE = 1 << 20  # bytes that one case may say


def grade(
    submissions: str,
    out: str,
    jobs: int | None = None,
    seed: int | None = None,
    again: bool = False,
    gradebook: str | None = None,
    no_sandbox: bool = False,
) -> str:
    """Grade a folder of submissions into a folder of results. Returns what to tell whoever asked."""
    if jobs is not None and jobs < 1:
        raise BadSubmissions(f"--jobs {jobs}: give 1 or more")
    _check_out(Path(out), Path(submissions))
    handed = find_submissions(Path(submissions))
    if gradebook:
        check_gradebook(gradebook)
    if not no_sandbox:
        sandbox.check_sandbox()
        for folder in filter(sandbox.shows, map(Path, (submissions, out))):
            raise BadSubmissions(f"{folder}: every submission can read what lies there; use another place")
    seed = seed_of_class(Path(out)) if seed is None else seed
    grader = Grader(Path(out), seed=seed, sandboxed=not no_sandbox, jobs=jobs)
    records = grader.grade(handed, again=again)
    write_pages(records, Path(out))
    if gradebook:
        write_gradebook(records, gradebook)
    students = len({record.student for record in records})
    troubled = sum(bool(record.problem) for record in records)
    return f"{len(records)} notebooks of {students} students: {out}/grades.csv, {out}/pages/" + (
        f"; {troubled} had problems as a whole" if troubled else ""
    )


def seed_of_class(out: Path) -> int:
    """The seed of the inputs that a class is graded on: drawn once, kept beside the results."""
    path = out / "seed.txt"
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        seed = secrets.randbelow(2**31)
    out.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(f"{seed}\n")
    aside.replace(path)
    return seed


def _check_out(out: Path, submissions: Path) -> None:
    """Refuse a place for the results that cannot be one, before the first notebook is graded."""
    if os.path.lexists(out) and not out.is_dir():
        raise BadSubmissions(f"--out {out} is not a folder: give one for pages, table and records")
    if out.resolve().is_relative_to(submissions.resolve()):
        raise BadSubmissions(f"--out {out} lies in {submissions}: results do not belong among what was handed in")


class Grader:
    """Grades notebooks, several at a time. What the exercises expect stays in this process."""

    def __init__(self, out: Path, *, seed: int = SEED, sandboxed: bool = True, jobs: int | None = None) -> None:
        self.out, self.seed, self.sandboxed = out, seed, sandboxed
        self.limits = sandbox.Limits()
        self.slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.jobs = min(jobs or os.cpu_count() or 1, sandbox.SLOTS)
        for slot in range(self.jobs):
            self.slots.put(slot)
        self._judging, self._stop = threading.Lock(), threading.Event()
        self._cases: dict[str, list[Case]] = {e.number: e.cases(seed) for e in exercises().values()}
        self._wrong = {e.number: wrong_answers(e) for e in exercises().values()}
        for exercise in exercises().values():  # what drives an answer travels by value: its lesson's checks do not
            cloudpickle.register_pickle_by_value(sys.modules[exercise.drive.__module__.rpartition(".")[0]])

    def grade(self, handed: list[SubmittedNotebook], *, again: bool = False) -> list[Record]:
        """Grade what has not been graded yet, with a progress bar; all records, in the order of `handed`."""
        from tqdm.auto import tqdm

        def one(each: SubmittedNotebook) -> Record:
            path = self.out / "records" / each.student / f"{each.notebook}.json"
            try:
                content, problem = each.content(), ""
            except BadNotebook as error:
                content, problem = b"", f"{error}."
            key = self._key(each, content)  # of the very bytes that are graded: the file may change in the meantime
            known = None if again else Record.known(path, key)
            if known is None:
                known = self._grade_one(each, content, key, problem)
                known.save(path)
            return known

        self._stop.clear()
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                return list(tqdm(pool.map(one, handed), total=len(handed), desc="grading", unit="notebook"))
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _grade_one(self, handed: SubmittedNotebook, content: bytes, key: str, problem: str) -> Record:
        ours = [exercise for exercise in exercises().values() if exercise.lesson == handed.lesson]
        try:
            if problem:
                raise BadNotebook(problem.removesuffix("."))
            cells = code_of(parse(content))
            ended = self._run(cells, ours)
            if self._stop.is_set():
                raise CancelledError  # what was not run to its end is not graded
            outcomes, problems = _what_was_seen(ended, cells)
            with self._judging:
                marks = [self._mark(exercise, outcomes, cells) for exercise in ours]
        except BadNotebook as error:
            marks, problems = [Mark(e.number, dict.fromkeys(e.parts, 0), attempted=False) for e in ours], [f"{error}."]
        if handed.others:
            problems.append(f"Not graded, because {handed.notebook}.ipynb was: {handed.other_names}.")
        return Record(handed.student, handed.notebook, key, marks, " ".join(problems))

    def _run(self, cells: list[str], ours: list[Exercise]) -> sandbox.SandboxResult:
        tasks = [
            Task(
                e.number,
                e.answer,
                cloudpickle.dumps(e.drive),
                [(c.part, c.ranks, c.inputs) for c in self._cases[e.number]],
            )
            for e in ours
        ]
        slot = self.slots.get()
        try:
            timeout, modules = max([TIMEOUT, *(e.timeout for e in ours)]), [name for e in ours for name in e.modules]
            submission = Submission(cells, tasks, timeout, modules)
            # Where an exercise is given more time for a case, so is the whole.
            limits = dataclasses.replace(self.limits, seconds=self.limits.seconds + 10 * (timeout - TIMEOUT))
            return sandbox.run(submission, limits, slot=slot, sandboxed=self.sandboxed, stop=self._stop)
        finally:
            self.slots.put(slot)

    def _mark(self, exercise: Exercise, outcomes: dict[tuple[str, int], Outcome], cells: list[str]) -> Mark:
        cases = self._cases[exercise.number]

        def look_up(place: int) -> Outcome:
            return outcomes.get((exercise.number, place), Outcome("missing"))

        report = assess(exercise, cases, look_up, self._wrong[exercise.number])
        attempted = report.attempted and any(look_up(place).kind != "missing" for place in range(len(cases)))
        remarks = {part: remark(finding, cells) for part, finding in report.findings.items()}
        causes = {part: finding.cause for part, finding in report.findings.items() if finding.cause}
        return Mark(
            exercise.number, report.earned, remarks if attempted else {}, attempted, causes if attempted else {}
        )

    def _key(self, handed: SubmittedNotebook, content: bytes) -> str:
        """Changes whenever the marks might."""
        about = f"{self.seed} {__version__} {handed.other_names}"
        return hashlib.sha256(content + about.encode()).hexdigest()


def remark(finding: Finding, cells: list[str]) -> str:
    """What a student may know of a failed case: the idea, their own line, but neither inputs nor expected values."""
    outcome = finding.outcome
    text = {
        "returned": "It returns something else than the exercise asks for.",
        "raised": f"It raises {_error_name(outcome.error)}{_own_line(outcome, cells)}.",
        "stuck": "Its ranks wait for ever.",
        "died": "One of its ranks ends its process.",
        "differ": "Its ranks call different collectives.",
        "missing": "It was not run to its end.",
    }.get(outcome.kind, "It could not be run.")
    if finding.costs:
        text = "The values are right, and it costs more than the exercise allows."
    if not finding.cause:
        return text
    return finding.cause if outcome.kind == "returned" else f"{text} {finding.cause}"


def _what_was_seen(ended: sandbox.SandboxResult, cells: list[str]) -> tuple[dict[tuple[str, int], Outcome], list[str]]:
    """The outcomes by exercise and case, and what else went wrong. The lines come from an untrusted place."""
    outcomes: dict[tuple[str, int], Outcome] = {}
    problems = [f"Grading was stopped: {ended.reason}."] if ended.reason else []
    if not ended.reason and END not in ended.lines:
        problems.append("It ended its own process before it was graded to its end.")
    for line in ended.lines:
        if len(line) > LONGEST_LINE:
            continue  # what a judge would take long to look at
        try:
            record = json.loads(line)
            if "cell" in record:
                problems.append(_cell_problem(record, cells))
            else:
                outcomes[str(record["number"]), int(record["case"])] = Outcome.of_record(record["outcome"])
        except (ValueError, TypeError, KeyError, RecursionError, RuntimeError):
            continue
    return outcomes, problems[:10]


def _cell_problem(record: dict[str, Any], cells: list[str]) -> str:
    where = _own_line(Outcome("raised", cell=f"<cell {int(record['cell'])}>", line=int(record["line"])), cells)
    return f"Code cell {int(record['cell']) + 1} raised {_error_name(str(record['error']))}{where}."


def _own_line(outcome: Outcome, cells: list[str]) -> str:
    """The student's own line, from what they have handed in."""
    try:
        lines = cells[int(outcome.cell.removeprefix("<cell ").removesuffix(">"))].splitlines()
        return f" at “{lines[outcome.line - 1].strip()[:100]}”" if outcome.line > 0 else ""
    except (ValueError, IndexError):
        return ""


def _error_name(name: str) -> str:
    """The name of an exception that Python itself has: another name could carry a message out of the sandbox."""
    import builtins

    known = getattr(builtins, name, None)
    return name if isinstance(known, type) and issubclass(known, BaseException) else "an exception"
