"""Write the table of exercises in README.md beside this: `python -m tests.checks.table`, on a quiet machine.

It takes about half an hour: answers in the banks are checked as a learner's are, and timed.
"""

from __future__ import annotations

import contextlib
import io
import re
import statistics
import time
from pathlib import Path

from tqdm import tqdm

from course_lib.checks import examine, exercises
from course_lib.checks.exercise import Exercise
from tests.checks.bank import banked
from tests.checks.mutants import SAMPLE, tally
from tests.checks.tried import answer_to

README = Path(__file__).with_name("README.md")
CAPSTONE = "11.1"  # a check of it takes as long as ten of the others
HEAD = [
    "| exercise | points | minutes | cases | wrong | right | mutants refused | accepted in | refused in |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
]


def counts(exercise: Exercise) -> list[str]:
    """Points, minutes, cases, and how many wrong and right answers the banks have."""
    ours = banked(exercise.number)
    wrong = sum(not each.is_right for each in ours)
    right = sum(each.is_right for each in ours) + 1
    return list(map(str, (exercise.points, exercise.minutes, len(exercise.cases(1)), wrong, right)))


def table() -> str:
    """A line for each exercise, and the sums, without anything that takes long."""
    rows = [f"| {e.number} {e.title} | {' | '.join(counts(e))} |" for e in exercises().values()]
    sums = [str(sum(int(counts(e)[place]) for e in exercises().values())) for place in range(5)]
    return "\n".join([*(line.rsplit("|", 4)[0] + "|" for line in HEAD), *rows, f"| all | {' | '.join(sums)} |"])


def seconds(exercise: Exercise, answer) -> float:
    began = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        examine(exercise, answer, seed=1)
    return time.monotonic() - began


def measured(exercise: Exercise) -> tuple[int, int, float, float]:
    """Mutants refused, mutants that changed anything, and the median seconds of an acceptance and of a refusal."""
    found = tally(exercise, SAMPLE if exercise.number == CAPSTONE else None)
    right = [answer_to(exercise), *(each.answer for each in banked(exercise.number) if each.is_right)]
    wrong = [each.answer for each in banked(exercise.number) if not each.is_right]
    timed = (statistics.median(seconds(exercise, answer) for answer in answers) for answers in (right, wrong))
    return len(found.refused), len(found.refused) + len(found.survivors), *timed


def main() -> None:
    rows, accepted, refused, killed, changed = [], [], [], 0, 0
    for exercise in tqdm(list(exercises().values()), desc="exercises"):
        dead, all_of_them, took_right, took_wrong = measured(exercise)
        accepted.append(took_right)
        refused.append(took_wrong)
        killed, changed = killed + dead, changed + all_of_them
        cells = [*counts(exercise), f"{dead} of {all_of_them}", f"{took_right:.1f} s", f"{took_wrong:.1f} s"]
        rows.append(f"| {exercise.number} {exercise.title} | {' | '.join(cells)} |")
    sums = [str(sum(int(counts(e)[place]) for e in exercises().values())) for place in range(5)]
    medians = [f"{statistics.median(times):.1f} s" for times in (accepted, refused)]
    rows.append(f"| all; seconds: the median | {' | '.join([*sums, f'{killed} of {changed}', *medians])} |")
    text = README.read_text()
    new = re.sub(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", "\n".join([*HEAD, *rows, ""]), text, flags=re.S)
    README.with_suffix(".tmp").write_text(new)
    README.with_suffix(".tmp").replace(README)


if __name__ == "__main__":
    main()
