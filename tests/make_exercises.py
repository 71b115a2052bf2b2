"""Run the solutions and make the exercises from them: `make exercises`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tqdm import tqdm

from course_lib.checks.notebooks import read, without_answers
from tests.refresh_notebooks import learned_by_nobody, refresh


def make_exercise(solution: Path) -> None:
    """Run a solution, write the exercise beside it without the answers, and run that, too."""
    refresh(solution)
    exercise = solution.parent.parent / "exercises" / solution.name
    exercise.write_text(json.dumps(without_answers(read(solution)), indent=1, ensure_ascii=False) + "\n")
    refresh(exercise)


if __name__ == "__main__":
    with learned_by_nobody():
        for name in tqdm(sys.argv[1:], desc="exercises"):
            make_exercise(Path(name))
