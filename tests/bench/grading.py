"""What grading costs: a class of thirty, and where the time of one submission goes."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from course_lib import launch
from course_lib.checks import exercises
from course_lib.checks.inside.observe import observe
from course_lib.checks.notebooks import code_of, read
from course_lib.grading.grader import SEED, Grader
from course_lib.grading.runs import TIMEOUT
from course_lib.grading.sandbox import check_sandbox
from course_lib.grading.submissions import find_submissions
from tests.bench.table import describe_machine, write_section
from tests.checks.class_of import EXERCISE, ROOT, SOLUTION, hand_in
from tests.checks.class_of_banks import hand_in_class
from tests.checks.test_interrupts import random_interrupts
from tests.checks.tried import answer_to
from tests.checks.under_load import grade_under_load, hand_in_solutions

STUDENTS = 30
LARGE = 300
COPIES = 12
INTERRUPTS = 40
ROUNDS = 5


def class_of_thirty() -> float:
    """Seconds for all of them: a third good, a third half right, a third not attempted."""
    half_right = read(ROOT / "tests" / "checks" / "example_class" / "half_right" / "02_ddp.ipynb")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(STUDENTS):
            notebook = (SOLUTION, half_right, EXERCISE)[number % 3]
            hand_in(Path(folder, "in"), f"student{number:02}", notebook)
        began = time.monotonic()
        Grader(Path(folder, "out")).grade(find_submissions(Path(folder, "in")))
        return time.monotonic() - began


def rows_of_large_class(lesson: str) -> list[str]:
    """What a large class costs, and whether it was graded right."""
    each, off, grown = large_class(lesson)
    return [
        f"| each of {LARGE} submissions of lesson {lesson} from the banks, one in twenty hostile | {each:.2f} s |",
        f"| marks among them that are not as the banks say | {off} |",
        f"| memory of the grader, from a quarter of them to the last | {grown:+.0f} MB |",
    ]


def large_class(lesson: str = "02", students: int = LARGE) -> tuple[float, int, float]:
    """Seconds for each of many submissions from the banks, how many marks are not as the banks say, and by how many
    MB the grader's own memory has grown from the first quarter of them to the last.
    """
    with tempfile.TemporaryDirectory() as folder:
        expected = hand_in_class(Path(folder, "in"), students, lesson=lesson)
        handed = find_submissions(Path(folder, "in"))
        grader = Grader(Path(folder, "out"))
        began = time.monotonic()
        records = grader.grade(handed[: students // 4])
        before = megabytes()
        records += grader.grade(handed[students // 4 :])
        spent, grown = (time.monotonic() - began) / students, megabytes() - before
    return spent, sum(not expected[record.student].fits(record) for record in records), grown


def marks_lost_under_load(rounds: int = ROUNDS) -> tuple[int, int]:
    """Points that our own solutions lost, and how many were due: twelve of each lesson, beside four that spin."""
    lost = due = 0
    with tempfile.TemporaryDirectory() as folder:
        hand_in_solutions(Path(folder, "in"), COPIES)
        for number in range(rounds):
            records = grade_under_load(Path(folder, "in"), Path(folder, f"out{number}"))
            due += sum(record.most for record in records)
            lost += sum(record.most - record.points for record in records)
            print(f"round {number + 1}: {lost} points lost of {due}", flush=True)
    return lost, due


def megabytes() -> float:
    """Memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def one_submission() -> tuple[float, float, float]:
    """Seconds until a submission's cells have run, for each case after that, and for a case outside a sandbox."""
    ours = [exercise for exercise in exercises().values() if exercise.lesson == "02"]
    cases = {exercise.number: exercise.cases(SEED) for exercise in ours}
    cells, count = code_of(SOLUTION), sum(map(len, cases.values()))
    grader = Grader(Path(tempfile.gettempdir()))
    assert len(grader._run(cells, ours, cases).lines) == count + 1
    launch(int, ranks=2)
    starts, each, outside = [], [], []
    for _ in range(ROUNDS):
        start, whole = seconds(grader._run, cells, [], {}), seconds(grader._run, cells, ours, cases)
        starts.append(start)
        each.append((whole - start) / count)
        tries = [(e, answer_to(e), case) for e in ours for case in cases[e.number]]
        spent = [seconds(observe, e.drive, answer, c.ranks, c.inputs, TIMEOUT) for e, answer, c in tries]
        outside.append(statistics.mean(spent))
    return statistics.median(starts), statistics.median(each), statistics.median(outside)


def seconds(work, *arguments) -> float:
    began = time.monotonic()
    work(*arguments)
    return time.monotonic() - began


def main() -> None:
    """Measure, print and write the table."""
    check_sandbox()
    start, case, outside = one_submission()
    whole = class_of_thirty()
    large_rows = [row for lesson in ("02", "09") for row in rows_of_large_class(lesson)]
    lost, due = marks_lost_under_load()
    with tempfile.TemporaryDirectory() as folder:
        wait = random_interrupts(Path(folder), INTERRUPTS)
    spinning = f"{COPIES} of each of our own solutions beside four spinning processes, {ROUNDS} times"
    rows = [
        f"| start the sandbox, import torch once, run the cells | {start:.2f} s |",
        f"| each case after that, on 2 to 4 ranks | {case:.2f} s |",
        f"| the same in a notebook, without a sandbox | {outside:.2f} s |",
        f"| {STUDENTS} submissions of lesson 02, two at a time | {whole:.0f} s |",
        *large_rows,
        f"| points lost of {due:,}: {spinning} | {lost} |",
        f"| the longest of {INTERRUPTS} waits after Ctrl-C at random moments, beside the same | {wait:.1f} s |",
    ]
    about = f"The median of {ROUNDS} rounds. One third of the class is right, one half right, one blank."
    body = [about, "", f"On {describe_machine()}.", "", "| | |", "|---|--:|", *rows]
    write_section("Grading", "\n".join(body))


if __name__ == "__main__":
    main()
