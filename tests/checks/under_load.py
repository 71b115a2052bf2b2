"""Classes graded on a machine that is kept busy."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from course_lib.grading.grader import Grader
from course_lib.grading.records import Record
from course_lib.grading.submissions import find_submissions
from tests.checks.class_of import ROOT, hand_in, read

JOBS = 4  # at a time, and as many processes that spin


@contextlib.contextmanager
def busy(spinning: int = JOBS, core: int | None = None) -> Iterator[None]:
    """So many processes that do nothing but keep a core busy, or all of them."""
    loop = f"import os\nos.sched_setaffinity(0, [{core}])\n" if core is not None else ""
    spinners = [subprocess.Popen([sys.executable, "-S", "-c", loop + "while True: pass"]) for _ in range(spinning)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def hand_in_solutions(folder: Path, copies: int, lessons: Sequence[str] = ("",)) -> None:
    """So many students, each with our own solutions of these lessons; of all, if none is named."""
    for path in sorted((ROOT / "solutions").glob("*.ipynb")):
        if path.name.startswith(tuple(lessons)):
            for number in range(copies):
                hand_in(folder, f"student{number}", read(path), path.name)


def grade_under_load(submissions: Path, out: Path) -> list[Record]:
    """Grade four at a time beside four spinning processes."""
    with busy():
        return Grader(out, jobs=JOBS).grade(find_submissions(submissions))
