"""Every exercise: its solution passes, its stub is not attempted, and each known mistake is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from course_lib.checks import examine, exercises
from course_lib.checks.exercise import LEVELS, Case, Exercise, idea
from course_lib.checks.grading import SEED as GRADING_SEED
from course_lib.checks.inside.observe import Outcome, observe
from course_lib.checks.judging import Report, assess, wrong_answers
from course_lib.checks.notebooks import (
    answer_metadata,
    check_metadata,
    heading,
    is_answer,
    names_of,
    read,
    source,
    without_answers,
)

ROOT = Path(__file__).resolve().parent.parent.parent
SOLUTIONS = sorted((ROOT / "solutions").glob("*.ipynb"))
SEEDS = (2, 3, 4, GRADING_SEED)  # beside the one that learners get

all_exercises = pytest.mark.parametrize("exercise", exercises().values(), ids=list(exercises()))
all_notebooks = pytest.mark.parametrize("solution", SOLUTIONS, ids=[path.stem for path in SOLUTIONS])
all_mistakes = pytest.mark.parametrize(
    ("exercise", "mistake"),
    [
        pytest.param(exercise, mistake, id=f"{exercise.number} {mistake.__name__}")
        for exercise in exercises().values()
        for mistake in (*exercise.mistakes, *filter(None, [exercise.hanging]))
    ],
)


def notebook_of(exercise: Exercise) -> dict:
    (path,) = (path for path in SOLUTIONS if path.stem.startswith(exercise.lesson))
    return read(path)


@cache
def names_in(lesson: str, stubs: bool) -> dict:
    """What a lesson's solutions define, or the stubs made from them."""
    (path,) = (path for path in SOLUTIONS if path.stem.startswith(lesson))
    return names_of(without_answers(read(path)) if stubs else read(path))


def answer_to(exercise: Exercise, stub: bool = False):
    return names_in(exercise.lesson, stub)[exercise.answer]


@cache
def wrong_answers_to(number: str):
    """What each mistake does in each case, run once for all tests."""
    return wrong_answers(exercises()[number])


def named(exercise: Exercise, mistake) -> Report:
    """What a learner is told who hands in this mistake."""
    cases, wrong = cases_of(exercise.number), wrong_answers_to(exercise.number)
    return assess(exercise, cases, partial(wrong, mistake), wrong, after_a_hang=False)


@cache
def cases_of(number: str) -> list[Case]:
    return exercises()[number].cases(1)


def reports_on(exercise: Exercise, answer, seeds: Sequence[int]) -> list[Report]:
    """What `examine` would say, without names; with one launch for all cases of as many ranks, whatever their seed."""
    cases = {seed: exercise.cases(seed) for seed in seeds}
    outcomes: dict[int, Outcome] = {}
    everything = [case for some in cases.values() for case in some]
    for ranks in sorted({case.ranks for case in everything}):
        ours = [case for case in everything if case.ranks == ranks]
        together = observe(drive_all, (exercise.drive, answer), ranks, {"inputs": [c.inputs for c in ours]}, 20.0)
        for index, case in enumerate(ours):
            outcomes[id(case)] = replace(together, values=tuple(value[index] for value in together.values))
    unnamed = Outcome("not run")
    return [
        assess(exercise, some, lambda case: outcomes[id(case)], lambda mistake, case: unnamed)
        for some in cases.values()
    ]


def drive_all(drive_and_answer, inputs: list[dict]) -> list:
    drive, answer = drive_and_answer
    return [drive(answer, **each) for each in inputs]


def test_every_lesson_has_exercises():
    for lesson in sorted((ROOT / "notebooks").glob("*.ipynb")):
        ours = [exercise for exercise in exercises().values() if exercise.lesson == lesson.stem[:2]]
        assert len(ours) >= (2 if lesson.stem[:2] in ("00", "09") else 3), lesson.stem
        assert (ROOT / "solutions" / lesson.name).exists()


@all_exercises
def test_the_solution_passes_in_full(exercise):
    report = examine(exercise, answer_to(exercise), seed=1)
    assert report.passed, report
    for report in reports_on(exercise, answer_to(exercise), SEEDS):
        assert report.passed, report


@all_exercises
def test_the_stub_is_not_attempted(exercise):
    report = examine(exercise, answer_to(exercise, stub=True), seed=1)
    assert not report.attempted
    assert report.points == 0


@all_mistakes
def test_a_known_mistake_is_named(exercise, mistake):
    report = named(exercise, mistake)
    taken_for = [finding.mistake for finding in report.findings.values()]
    assert mistake in taken_for[:1], f"taken for {taken_for}\n{report}"
    assert idea(mistake) in str(report)


@all_mistakes
def test_no_inputs_make_a_known_mistake_pass(exercise, mistake):
    if mistake is exercise.hanging:
        pytest.skip("a hang does not depend on numbers, and takes long")
    for seed, report in zip(SEEDS, reports_on(exercise, mistake, SEEDS), strict=True):
        assert not report.passed, f"passed with seed {seed}"


@all_exercises
def test_an_exercise_is_complete(exercise):
    mistakes = [*exercise.mistakes, *filter(None, [exercise.hanging])]
    assert len(mistakes) >= 4
    assert len({idea(mistake) for mistake in mistakes}) == len(mistakes), "each mistake has its own message"
    assert len(exercise.hints) >= 2
    assert exercise.level in LEVELS
    assert 5 <= exercise.minutes <= 40
    cases = exercise.cases(1)
    assert {case.part for case in cases} == set(exercise.parts)
    assert exercise.parts.keys() == dict.fromkeys(case.part for case in cases).keys()
    assert [case.says for case in exercise.cases(1)] == [case.says for case in cases]


@all_exercises
def test_the_cases_can_be_told_apart(exercise):
    cases = exercise.cases(1)
    assert [cases.index(case) for case in cases] == list(range(len(cases)))


@all_exercises
def test_what_to_read_again_is_a_section_of_the_lesson(exercise):
    (path,) = (ROOT / "notebooks").glob(f"{exercise.lesson}_*.ipynb")
    cells = [source(cell) for cell in read(path)["cells"] if cell["cell_type"] == "markdown"]
    headings = [line.lstrip("# ") for cell in cells for line in cell.splitlines() if line.startswith("#")]
    assert exercise.read in headings


@all_exercises
def test_the_notebook_says_what_the_exercise_is_worth(exercise):
    notebook = notebook_of(exercise)
    texts = [source(cell) for cell in notebook["cells"]]
    assert any(text.startswith(heading(exercise)) for text in texts), f"no cell begins with {heading(exercise)!r}"
    (answer,) = (c for c in notebook["cells"] if c["metadata"] == answer_metadata(exercise.number))
    (check,) = (c for c in notebook["cells"] if c["metadata"] == check_metadata(exercise))
    assert f"def {exercise.answer}(" in source(answer) or f"{exercise.answer} =" in source(answer)
    assert source(check).splitlines()[-1] == f'check("{exercise.number}", {exercise.answer})'


@all_notebooks
def test_the_exercise_is_made_from_the_solution(solution):
    made = without_answers(read(solution))["cells"]
    stored = read(ROOT / "exercises" / solution.name)["cells"]
    assert [(source(cell), cell["metadata"]) for cell in stored] == [(source(cell), cell["metadata"]) for cell in made]


@all_notebooks
def test_both_notebooks_were_run(solution):
    for path in (solution, ROOT / "exercises" / solution.name):
        code = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
        checks = [cell for cell in code if source(cell).startswith("check(")]
        assert all(cell["outputs"] for cell in checks)
        says = "passed" if path == solution else "not attempted"
        assert all(says in json.dumps(cell["outputs"]) for cell in checks)


@all_notebooks
def test_a_solution_has_reasons_and_an_exercise_has_none(solution):
    for cell in filter(is_answer, read(solution)["cells"]):
        assert "# " in source(cell).partition("### BEGIN SOLUTION")[2], "say why"
    for cell in filter(is_answer, read(ROOT / "exercises" / solution.name)["cells"]):
        assert "SOLUTION" not in source(cell)
        assert "raise NotImplementedError()" in source(cell)
