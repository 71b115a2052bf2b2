"""The table of exercises in README.md beside this: `python -m tests.checks.table` writes it again."""

from __future__ import annotations

import re
from pathlib import Path

from course_lib.checks import exercises
from course_lib.checks.exercise import Exercise
from tests.checks.bank import banked

README = Path(__file__).with_name("README.md")
CAPSTONE = "11.1"  # a check of it takes as long as ten of the others
HEAD = "| exercise | points | minutes | cases | wrong | right |\n|---|---:|---:|---:|---:|---:|"


def counts(exercise: Exercise) -> list[int]:
    """Points, minutes, cases, and how many wrong and right answers the banks have, our own solution among them."""
    ours = banked(exercise.number)
    right = sum(each.is_right for each in ours)
    return [exercise.points, exercise.minutes, len(exercise.cases(1)), len(ours) - right, right + 1]


def table() -> str:
    """A line for each exercise, and the sums."""
    found = {f"{each.number} {each.title}": counts(each) for each in exercises().values()}
    found["all"] = [sum(column) for column in zip(*found.values(), strict=True)]
    return "\n".join([HEAD, *(f"| {name} | {' | '.join(map(str, row))} |" for name, row in found.items())])


def main() -> None:
    text = README.read_text()
    new = re.sub(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", lambda _: table() + "\n", text, flags=re.DOTALL)
    README.with_suffix(".tmp").write_text(new)
    README.with_suffix(".tmp").replace(README)


if __name__ == "__main__":
    main()
