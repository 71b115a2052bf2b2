"""What grading costs: where the time of one submission goes, and a class of thirty."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from course_lib import launch
from course_lib.checks.catalog import exercises
from course_lib.checks.inside.observe import observe
from course_lib.checks.notebooks import code_of
from course_lib.grading.grader import SEED, Grader
from course_lib.grading.runs import TIMEOUT
from course_lib.grading.sandbox import check_sandbox
from course_lib.grading.submissions import find_submissions
from course_lib.runtime.course_files import read
from tests.benchmarks.table import alternate, table, write_section
from tests.checks.class_of import EXERCISE, ROOT, SOLUTION, hand_in
from tests.checks.tried import answer_to

STUDENTS, ROUNDS = 30, 5


def class_of_thirty() -> float:
    """Return the seconds for a class: a third good, a third half right, a third not attempted."""
    half_right = read(ROOT / "tests" / "checks" / "example_class" / "half_right" / "02_ddp.ipynb")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(STUDENTS):
            notebook = (SOLUTION, half_right, EXERCISE)[number % 3]
            hand_in(Path(folder, "in"), f"student{number:02}", notebook)
        work = partial(Grader(Path(folder, "out")).grade, find_submissions(Path(folder, "in")))
        return alternate([work], rounds=1, warm_up=0)[0]


def one_submission() -> tuple[float, float, float]:
    """Return seconds until a submission's cells have run, for each case after that, and for one outside a sandbox."""
    ours = [exercise for exercise in exercises().values() if exercise.lesson == "02"]
    cases = {exercise.number: exercise.cases(SEED) for exercise in ours}
    cells, grader = code_of(SOLUTION), Grader(Path(tempfile.gettempdir()))
    answers = {exercise.number: answer_to(exercise) for exercise in ours}
    launch(int, ranks=2)

    def outside() -> None:
        for exercise in ours:
            for case in cases[exercise.number]:
                observe(exercise.drive, answers[exercise.number], case.ranks, case.inputs, TIMEOUT)

    starting, whole = partial(grader._run, cells, [], {}), partial(grader._run, cells, ours, cases)
    start, all_cases, in_a_notebook = alternate([starting, whole, outside], ROUNDS)
    count = sum(map(len, cases.values()))
    return start, (all_cases - start) / count, in_a_notebook / count


def main() -> None:
    """Measure, print and write the table."""
    check_sandbox()
    start, case, outside = one_submission()
    rows = [
        ["start the sandbox, import torch once, run the cells", f"{start:.2f}"],
        ["each case after that, on 2 to 4 ranks", f"{case:.2f}"],
        ["the same in a notebook, without a sandbox", f"{outside:.2f}"],
        [f"{STUDENTS} submissions of lesson 02, two at a time", f"{class_of_thirty():.0f}"],
    ]
    about = f"The median of {ROUNDS} rounds. One third of the class is right, one half right, one blank."
    write_section("Grading", about, table(" | s", rows))


if __name__ == "__main__":
    main()
