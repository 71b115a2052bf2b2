"""Grade a class: run every submission in a sandbox, write a page per student and a table of the whole class."""

from __future__ import annotations

import hashlib
import os
import pickle
import queue
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import cloudpickle

from course_lib import checks, lessons
from course_lib.checks.catalog import exercises
from course_lib.checks.exercise import Case, Exercise
from course_lib.grading import protection, sandbox
from course_lib.grading.children import Allowance, Child, ChildFailed
from course_lib.grading.gradebook import check_gradebook, write_gradebook
from course_lib.grading.judge import judge, read_cells, render
from course_lib.grading.limits import Limits
from course_lib.grading.pages import page, write_pages
from course_lib.grading.parts import Part, read_parts, write_part
from course_lib.grading.platforms import read_students, write_platform_table
from course_lib.grading.records import Mark, Record
from course_lib.grading.runs import Runs
from course_lib.grading.secret import derive, secret_of_class, secret_of_number, seed_of_inputs
from course_lib.grading.submissions import BadSubmissions, SubmittedNotebook, file_name, find_submissions
from course_lib.runtime import machine
from course_lib.runtime.course_files import BadNotebook
from course_lib.runtime.version import __version__

SEED = 20  # for tests; each class draws its own secret


def grade(
    submissions: str,
    out: str,
    jobs: int | None = None,
    seed: int | None = None,
    again: bool = False,
    flagged: bool = False,
    gradebook: str | None = None,
    csv: str | None = None,
    students: str | None = None,
    no_sandbox: bool = False,
    part: tuple[int, int] | None = None,
    merge: bool = False,
) -> str:
    """Grade a folder of submissions, write the results to `out`, and return a summary to print.

    With `part`, grade only the students in it and write their records; with `merge`, join the records of all parts.
    """
    if jobs is not None and jobs < 1:
        raise BadSubmissions(f"--jobs {jobs}: give 1 or more")
    _check_out(Path(out), Path(submissions))
    ours = Part(*part) if part else None
    handed = find_submissions(Path(submissions), ours and ours.has)
    if gradebook:
        check_gradebook(gradebook)
    known = read_students(students, csv) if csv and students else None
    if not no_sandbox and not merge:
        sandbox.check_sandbox()
        protection.say_what_is_missing()
        sandbox.allow_many_files()
        for folder in filter(sandbox.shows, map(Path, (submissions, out))):
            raise BadSubmissions(f"{folder}: every submission could read what is in it; use another folder")
    secret = secret_of_class(Path(out)) if seed is None else secret_of_number(seed)
    grader = Grader(Path(out), secret=secret, sandboxed=not no_sandbox, jobs=jobs)
    records = grader.merged(handed) if merge else grader.grade(handed, again=again, flagged=flagged)
    if ours:
        write_part(Path(out), ours, grader.checks, records)
        return f"part {ours}: {len({record.student for record in records})} students: {ours.file(Path(out))}"
    grader.write(records)
    if gradebook:
        write_gradebook(records, gradebook)
    told = f"\n{write_platform_table(records, csv, Path(out), known)}" if csv else ""
    graded = len({record.student for record in records})
    troubled = sum(bool(record.problem) for record in records)
    notebooks = sum(bool(record.notebook) for record in records)
    problems = f"; {troubled} had problems with a whole notebook" if troubled else ""
    return f"{notebooks} notebooks of {graded} students: {out}/index.html, {out}/grades.csv{problems}{told}"


def _check_out(out: Path, submissions: Path) -> None:
    """Raise `BadSubmissions` for an unusable results folder, before the first notebook is graded."""
    if os.path.lexists(out) and not out.is_dir():
        raise BadSubmissions(f"--out {out} is not a folder: give one for pages, table and records")
    if out.resolve().is_relative_to(submissions.resolve()):
        raise BadSubmissions(f"--out {out} lies in {submissions}: give a folder outside the submissions")


class Grader:
    """Grades notebooks, several at a time. The expected results never leave this process."""

    def __init__(
        self, out: Path, *, secret: bytes | None = None, sandboxed: bool = True, jobs: int | None = None
    ) -> None:
        self.out, self._secret = out, secret_of_number(SEED) if secret is None else secret
        self.runs = Runs(jobs or machine.cores(), Limits(), sandboxed=sandboxed)
        self._stop = self.runs.stop
        self._checks = {e.lesson: _digest_of_checks(e.lesson) for e in exercises().values()}
        cloudpickle.register_pickle_by_value(lessons)  # ship `drive` by value: the sandbox has no lessons

    def grade(self, handed: list[SubmittedNotebook], *, again: bool = False, flagged: bool = False) -> list[Record]:
        """Grade what is new, with a progress bar, and return all records in the order of `handed`.

        With `flagged`, also regrade flagged notebooks; with `again`, regrade everything.
        """
        from tqdm.auto import tqdm

        self._stop.clear()
        children: queue.SimpleQueue[Child] = queue.SimpleQueue()
        ours = [Child(self._stop, Allowance()) for _ in range(self.runs.jobs)]
        for child in ours:
            children.put(child)

        def one(each: SubmittedNotebook) -> Record:
            child = children.get()
            try:
                return self._record(each, child, again, flagged)
            finally:
                children.put(child)

        with ThreadPoolExecutor(self.runs.jobs) as pool:
            try:
                return list(tqdm(pool.map(one, handed), total=len(handed), desc="grading", unit="notebook"))
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise
            finally:
                for child in ours:
                    child.end()

    @property
    def checks(self) -> str:
        """A digest of the secret and of everything that decides marks: parts of a class must agree on it."""
        return derive(self._secret, "checks", __version__, *self._checks.values()).hex()

    def merged(self, handed: list[SubmittedNotebook]) -> list[Record]:
        """Return the records of all submissions from the parts of the class, in the order of `handed`."""
        found, records = read_parts(self.out, self.checks), []
        for each in handed:
            record = found.get((each.student, each.notebook))
            if record is None or record.key != self._key_of(each):
                raise BadSubmissions(
                    f"{each.student}: the current version of {each.notebook or 'the folder'} is not in the parts: it "
                    "was handed in or changed after its part was graded. Run that part again, then merge"
                )
            records.append(record)
        return records

    def write(self, records: list[Record]) -> None:
        """Write the pages and tables. A child renders each student's page; if that fails, the page gives the reason."""
        child = Child(self._stop, Allowance())

        def make(student: str, theirs: list[Record]) -> str:
            try:
                return child.do(render, student, [asdict(record) for record in theirs])
            except ChildFailed as error:
                told = f"The page for these marks could not be made: {error}."
                return page(student, [replace(record, marks=[], problem=told) for record in theirs])

        try:
            write_pages(records, self.out, make)
        finally:
            child.end()

    def _record(self, handed: SubmittedNotebook, child: Child, again: bool, flagged: bool) -> Record:
        """Return the saved record of a submission, or grade it. A broken submission affects no others."""
        if handed.trouble:
            return Record(handed.student, handed.notebook, "", [], handed.trouble)
        try:
            content = handed.content()
        except BadNotebook as error:
            return self._nothing(handed, f"{error}.")
        path = self.out / "records" / file_name(handed.student) / f"{file_name(handed.notebook)}.json"
        key = self._key(handed, content)  # hash the bytes we grade: the file may change meanwhile
        known = None if again else Record.known(path, key)
        if known and not (flagged and known.flagged):
            return known
        try:
            record = self._grade_one(handed, content, key, child)
            record.save(path)
        except CancelledError:
            raise
        except BadNotebook as error:
            return self._nothing(handed, f"{error}.", key)
        except Exception as error:
            why = str(error) if isinstance(error, ChildFailed) else f"{type(error).__name__} in the grader itself"
            return self._nothing(handed, f"It could not be graded: {why}.", key)
        return record

    def _grade_one(self, handed: SubmittedNotebook, content: bytes, key: str, child: Child) -> Record:
        ours = self._exercises(handed)
        cells = child.do(read_cells, content)
        cases = self.cases_of(handed.student, content, ours)
        ended = self._run(cells, ours, cases)
        if self._stop.is_set():
            raise CancelledError  # an unfinished run is not graded
        numbers = [exercise.number for exercise in ours]
        seen = child.do(judge, numbers, pickle.dumps(cases), cells, ended.lines, ended.reason)
        marks = [Mark(**mark) for mark in seen["marks"]]
        problems = " ".join([*seen["problems"], *_of_others(handed)])
        return Record(handed.student, handed.notebook, key, marks, problems, ended.by_clock)

    def _nothing(self, handed: SubmittedNotebook, problem: str, key: str = "") -> Record:
        """Return the record of a notebook that cannot be graded. It is not saved, so the next run tries again."""
        ours = self._exercises(handed)
        marks = [Mark(e.number, dict.fromkeys(e.parts, 0), attempted=False) for e in ours]
        return Record(handed.student, handed.notebook, key, marks, " ".join([problem, *_of_others(handed)]))

    def _exercises(self, handed: SubmittedNotebook) -> list[Exercise]:
        return [exercise for exercise in exercises().values() if exercise.lesson == handed.lesson]

    def cases_of(self, student: str, content: bytes, ours: Iterable[Exercise]) -> dict[str, list[Case]]:
        """Return the cases of these exercises for one submission. No other submission gets the same inputs."""
        return {e.number: e.cases(seed_of_inputs(self._secret, e.number, student, content)) for e in ours}

    def _run(
        self, cells: list[str], ours: Sequence[Exercise], cases: Mapping[str, Sequence[Case]]
    ) -> sandbox.SandboxResult:
        return self.runs.run(cells, ours, cases)

    def _key_of(self, handed: SubmittedNotebook) -> str:
        """Return the key that a record of this submission would have now; "" if there is no readable notebook."""
        try:
            return "" if handed.trouble else self._key(handed, handed.content())
        except BadNotebook:
            return ""

    def _key(self, handed: SubmittedNotebook, content: bytes) -> str:
        """Return a hash that changes whenever the marks might."""
        about = (handed.student, __version__, self._checks[handed.lesson], handed.other_names)
        return derive(self._secret, "record", content, *about).hex()


def _of_others(handed: SubmittedNotebook) -> list[str]:
    return [f"Not graded, because {handed.notebook}.ipynb was: {handed.other_names}."] if handed.others else []


def _digest_of_checks(lesson: str) -> str:
    """Hash every file and point value that affects what an answer to this lesson earns."""
    engine, content = (Path(package.__path__[0]) for package in (checks, lessons))
    files = [*engine.glob("*.py"), *engine.glob("inside/*.py"), *content.glob("*.py")]
    files += [file for file in content.glob(f"lesson_{lesson}/*") if file.is_file()]
    points = [(e.number, e.parts) for e in exercises().values() if e.lesson == lesson]
    return hashlib.sha256(repr(points).encode() + b"".join(file.read_bytes() for file in sorted(files))).hexdigest()
