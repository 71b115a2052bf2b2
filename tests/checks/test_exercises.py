"""Every exercise: its solution passes, its stub is not attempted, and each known mistake is refused by its name."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path

import pytest
import torch

from course_lib.checks import examine, exercises
from course_lib.checks.exercise import LEVELS, Case, Exercise, idea
from course_lib.checks.inside.observe import Outcome, observe
from course_lib.checks.inside.plain import encode
from course_lib.checks.judging import Report, assess
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
from course_lib.grading.grader import SEED as GRADING_SEED
from tests.conftest import PATIENCE

ROOT = Path(__file__).resolve().parent.parent.parent
SOLUTIONS = sorted((ROOT / "solutions").glob("*.ipynb"))
SEEDS = (2, 3, 4, GRADING_SEED)  # beside the one that learners get

all_exercises = pytest.mark.parametrize("exercise", exercises().values(), ids=list(exercises()))
all_notebooks = pytest.mark.parametrize("solution", SOLUTIONS, ids=[path.stem for path in SOLUTIONS])


def mistakes(exercise: Exercise, hanging: bool) -> list:
    """Parameters for a test. One that hangs takes seconds; a quicker neighbour is in test_check.py."""
    ends = [
        pytest.param(exercise, mistake, id=f"{exercise.number} {mistake.__name__}") for mistake in exercise.mistakes
    ]
    if not hanging or exercise.hanging is None:
        return ends
    name = f"{exercise.number} {exercise.hanging.__name__}"
    return [*ends, pytest.param(exercise, exercise.hanging, id=name, marks=pytest.mark.slow)]


def all_mistakes(hanging: bool):
    parameters = [each for exercise in exercises().values() for each in mistakes(exercise, hanging)]
    return pytest.mark.parametrize(("exercise", "mistake"), parameters)


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
def cases_of(number: str, seed: int) -> list[Case]:
    return exercises()[number].cases(seed)


@cache
def tried(number: str, answer) -> dict[int, Outcome]:
    """What an answer does in the cases of all seeds, by the id of the case: as `observe` sees it, in fewer launches.

    All cases of as many ranks share one launch, and those of one rank need none. An answer that does not return from
    all of them is tried on each by itself.
    """
    exercise, outcomes = exercises()[number], {}
    for ranks in sorted({case.ranks for case in cases_of_all_seeds(number)}):
        ours = [case for case in cases_of_all_seeds(number) if case.ranks == ranks]
        together = values_of_all(number, ranks).get(answer) or values_of(exercise, answer, ranks, ours)
        for index, case in enumerate(ours):
            if together is not None:
                outcomes[id(case)] = Outcome("returned", values=tuple(value[index] for value in together))
            elif case in cases_of(number, 1):
                outcomes[id(case)] = observe(exercise.drive, answer, ranks, case.inputs, exercise.timeout)
            else:
                outcomes[id(case)] = Outcome("raised", error="some case of this answer did not return")
    return outcomes


@cache
def cases_of_all_seeds(number: str) -> list[Case]:
    return [case for seed in (1, *SEEDS) for case in cases_of(number, seed)]


@cache
def values_of_all(number: str, ranks: int) -> dict:
    """Each rank's values in all cases of so many ranks, for the solution and the mistakes, tried in one launch.

    Empty where that does not come to its end, because one of the answers does not.
    """
    exercise = exercises()[number]
    if ranks == 1:
        return {}
    answers = [answer_to(exercise), *exercise.mistakes]
    inputs = [case.inputs for case in cases_of_all_seeds(number) if case.ranks == ranks]
    seen = observe(drive_answers, (exercise.drive, answers), ranks, {"inputs": inputs}, PATIENCE)
    if seen.kind != "returned":
        return {}
    return {answer: [value[place] for value in seen.values] for place, answer in enumerate(answers)}


def values_of(exercise: Exercise, answer, ranks: int, cases: list[Case]) -> list | None:
    """Each rank's values in all of these cases, or None if the answer did not come to its end."""
    inputs = [case.inputs for case in cases]
    if ranks > 1:
        seen = observe(drive_answers, (exercise.drive, [answer]), ranks, {"inputs": inputs}, PATIENCE)
        return [value[0] for value in seen.values] if seen.kind == "returned" else None
    try:
        return [encode([exercise.drive(answer, **each) for each in copy.deepcopy(inputs)])]
    except Exception:
        return None


def drive_answers(drive_and_answers, inputs: list[dict]) -> list[list]:
    drive, answers = drive_and_answers
    return [[drive(answer, **each) for each in copy.deepcopy(inputs)] for answer in answers]


def report_on(exercise: Exercise, answer, seed: int = 1) -> Report:
    """What a learner is told of this answer."""
    outcomes = tried(exercise.number, answer)

    def wrong(mistake, case: Case) -> Outcome:
        return tried(exercise.number, mistake)[id(case)]

    cases = cases_of(exercise.number, seed)
    return assess(exercise, cases, lambda case: outcomes[id(case)], wrong, after_a_hang=False)


def test_every_lesson_has_exercises():
    for lesson in sorted((ROOT / "notebooks").glob("*.ipynb")):
        ours = [exercise for exercise in exercises().values() if exercise.lesson == lesson.stem[:2]]
        assert len(ours) >= (2 if lesson.stem[:2] in ("00", "09") else 3), lesson.stem
        assert (ROOT / "solutions" / lesson.name).exists()


@all_exercises
def test_the_solution_passes_in_full(exercise):
    for seed in (1, *SEEDS):
        report = report_on(exercise, answer_to(exercise), seed)
        assert report.passed, f"seed {seed}: {report}"


@all_exercises
def test_the_stub_is_not_attempted(exercise):
    report = examine(exercise, answer_to(exercise, stub=True), seed=1)
    assert not report.attempted
    assert report.points == 0


@all_mistakes(hanging=True)
def test_a_known_mistake_is_named(exercise, mistake):
    report = examine(exercise, mistake, seed=1) if mistake is exercise.hanging else report_on(exercise, mistake)
    taken_for = [finding.mistake for finding in report.findings.values()]
    assert mistake in taken_for[:1], f"taken for {taken_for}\n{report}"
    assert idea(mistake) in str(report)


@all_mistakes(hanging=False)  # a hang does not depend on numbers
def test_no_inputs_make_a_known_mistake_pass(exercise, mistake):
    for seed in SEEDS:
        assert not report_on(exercise, mistake, seed).passed, f"passed with seed {seed}"


@all_exercises
@pytest.mark.parametrize("value", [-7.5, "text", [], [[None, [1]]], {"a": {}}, torch.full((2,), torch.nan)], ids=repr)
def test_whatever_is_returned_a_judge_says_what_is_wrong(exercise, value):
    for case in cases_of(exercise.number, 1):
        outcome = Outcome("returned", values=(encode(value),) * case.ranks)
        report = assess(exercise, [case], lambda _, same=outcome: same, lambda *_: Outcome("missing"))
        assert report.findings[case.part].what


@all_exercises
def test_an_exercise_is_complete(exercise):
    mistakes = [*exercise.mistakes, *filter(None, [exercise.hanging])]
    assert len(mistakes) >= 4
    assert len({idea(mistake) for mistake in mistakes}) == len(mistakes), "each mistake has its own message"
    assert len(exercise.hints) >= 2
    assert exercise.level in LEVELS
    assert 5 <= exercise.minutes <= 40
    cases = exercise.cases(1)
    assert list(exercise.parts) == list(dict.fromkeys(case.part for case in cases)), "parts in the order of their cases"
    assert [case.says for case in exercise.cases(1)] == [case.says for case in cases]


@all_exercises
def test_the_cases_can_be_told_apart(exercise):
    cases = [json.dumps([case.ranks, encode(case.inputs)]) for case in exercise.cases(1)]
    assert '"other"' not in "".join(cases), "inputs are plain data, or they could not be compared"
    assert len(set(cases)) == len(cases)


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
        assert len(checks) == sum(exercise.lesson == solution.stem[:2] for exercise in exercises().values())
        says = "passed" if path == solution else "not attempted"
        assert all(says in json.dumps(cell["outputs"]) for cell in checks)


@all_notebooks
def test_a_solution_has_reasons_and_an_exercise_has_none(solution):
    answers, stubs = (
        list(filter(is_answer, read(ROOT / folder / solution.name)["cells"])) for folder in ("solutions", "exercises")
    )
    assert len(answers) == len(stubs) > 0
    for cell in answers:
        assert "# " in source(cell).partition("### BEGIN SOLUTION")[2], "say why"
    for cell in stubs:
        assert "SOLUTION" not in source(cell)
        assert "raise NotImplementedError()" in source(cell)
