"""Every exercise: its solution passes, its stub is not attempted, and every symptom has its own message."""

from __future__ import annotations

import json

import pytest
import torch

from course_lib.checks import examine
from course_lib.checks.catalog import exercises
from course_lib.checks.exercise import Exercise, idea
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.plain import encode
from course_lib.checks.judging import assess
from course_lib.checks.notebooks import answer_metadata, check_metadata, heading, without_answers
from course_lib.checks.texts import LEVELS, read_exercises
from course_lib.grading.grader import SEED as GRADING_SEED
from course_lib.runtime.course_files import is_answer, read, source
from tests.checks.tried import CAPSTONE, ROOT, SOLUTIONS, answer_to, cases_of, report_on, try_together

NANS = torch.full((2,), torch.nan)
SEEDS = (2, 3, 4)  # beside the one that learners get, and the one that graders use in tests

all_exercises = pytest.mark.parametrize("exercise", exercises().values(), ids=list(exercises()))
all_notebooks = pytest.mark.parametrize("solution", SOLUTIONS, ids=[path.stem for path in SOLUTIONS])
all_that_hang = pytest.mark.parametrize(
    "exercise", [exercise for exercise in exercises().values() if exercise.hanging], ids=lambda each: each.number
)


def notebook_of(exercise: Exercise) -> dict:
    (path,) = (path for path in SOLUTIONS if path.stem.startswith(exercise.lesson))
    return read(path)


def test_every_lesson_has_exercises():
    for lesson in sorted((ROOT / "notebooks").glob("*.ipynb")):
        ours = [exercise for exercise in exercises().values() if exercise.lesson == lesson.stem[:2]]
        assert len(ours) >= (2 if lesson.stem[:2] in ("00", "09") else 3), lesson.stem
        assert (ROOT / "solutions" / lesson.name).exists()


@all_exercises
def test_the_solution_passes_in_full(exercise):
    assert_solved(exercise, [1])


@pytest.mark.slow
@all_exercises
def test_the_solution_passes_on_other_inputs(exercise):
    assert_solved(exercise, [GRADING_SEED] if exercise.number == CAPSTONE else (*SEEDS, GRADING_SEED))


def assert_solved(exercise: Exercise, seeds) -> None:
    try_together(exercise, [answer_to(exercise)], [case for seed in seeds for case in cases_of(exercise.number, seed)])
    for seed in seeds:
        report = report_on(exercise, answer_to(exercise), seed)
        assert report.passed, f"seed {seed}: {report}"


@all_exercises
def test_the_stub_is_not_attempted(exercise):
    report = examine(exercise, answer_to(exercise, stub=True), seed=1)
    assert not report.attempted
    assert report.points == 0


@pytest.mark.slow
@all_that_hang
def test_a_hang_is_explained_by_what_the_ranks_wait_in(exercise):
    report = examine(exercise, exercise.hanging, seed=1)
    finding = next(iter(report.findings.values()))
    assert finding.outcome.kind == "stuck"
    assert finding.cause


@pytest.mark.slow
@all_exercises
@pytest.mark.parametrize(
    "value",
    [[], *(pytest.param(v, marks=pytest.mark.slow) for v in (-7.5, "text", [[None, [1]]], {"a": {}}, NANS))],
    ids=repr,
)
def test_whatever_is_returned_a_judge_says_what_is_wrong(exercise, value):
    for case in cases_of(exercise.number, 1):
        outcome = Outcome("returned", values=(encode(value),) * case.ranks)
        report = assess(exercise, [case], lambda _, same=outcome: same)
        assert report.findings[case.part].what


@all_exercises
def test_an_exercise_is_complete(exercise):
    symptoms = exercise.symptoms
    assert len({idea(symptom) for symptom in symptoms}) == len(symptoms) >= 3, "each has its own message"
    assert len(exercise.hints) >= 2
    assert exercise.level in LEVELS
    assert 5 <= exercise.minutes <= (90 if exercise.number == CAPSTONE else 40)
    cases = exercise.cases(1)
    assert list(exercise.parts) == list(dict.fromkeys(case.part for case in cases)), "parts in the order of their cases"
    assert [case.says for case in exercise.cases(1)] == [case.says for case in cases]


@pytest.mark.slow
@all_exercises
def test_the_cases_can_be_told_apart(exercise):
    cases = [json.dumps([case.ranks, encode(case.inputs)]) for case in exercise.cases(1)]
    assert '"other"' not in "".join(cases), "inputs are plain data, or they could not be compared"
    assert len(set(cases)) == len(cases)


@all_exercises
def test_what_to_read_again_is_a_section_of_the_lesson(exercise):
    assert exercise.read_for.keys() <= exercise.parts.keys()
    for lesson, section in ((exercise.read_in or exercise.lesson, exercise.read), *exercise.read_for.values()):
        (path,) = (ROOT / "notebooks").glob(f"{lesson}_*.ipynb")
        cells = [source(cell) for cell in read(path)["cells"] if cell["cell_type"] == "markdown"]
        assert section in [line.lstrip("# ") for cell in cells for line in cell.splitlines() if line.startswith("#")]


@all_exercises
def test_the_notebook_says_what_the_exercise_is_worth(exercise):
    notebook = notebook_of(exercise)
    texts = [source(cell) for cell in notebook["cells"]]
    assert any(text.startswith(heading(exercise)) for text in texts), f"no cell begins with {heading(exercise)!r}"
    (answer,) = (c for c in notebook["cells"] if c["metadata"] == answer_metadata(exercise.number))
    (check,) = (c for c in notebook["cells"] if c["metadata"] == check_metadata(exercise))
    begins = (f"def {exercise.answer}(", f"class {exercise.answer}(", f"{exercise.answer} =")
    assert any(begin in source(answer) for begin in begins)
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


TEXTS = """
[[exercise]]
number = "02.1"
title = "A title"
answer = "function"
level = "exercise"
minutes = 5
read = "1 · A section"
hints = ["One", "Two"]
[exercise.parts]
"small" = 1
"""


def test_the_texts_of_an_exercise_are_read_from_their_file(tmp_path):
    (tmp_path / "exercises.toml").write_text(TEXTS.replace('"One"', '"""\nOn\ne"""'))
    (read_texts,) = read_exercises(tmp_path / "exercises.toml")
    assert read_texts["hints"] == ("On e", "Two")
    assert read_texts["parts"] == {"small": 1}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("minutes = 5", "", "exercise 1, minutes: it is missing"),
        ("minutes = 5", "minutes = 5\npoints = 1", "exercise 1, points: there is no such key; use one of number"),
        ("minutes = 5", 'minutes = "5"', "exercise 1, minutes: '5' has the wrong type"),
        ('"exercise"', '"hard"', r"exercise 1 \(02.1\), level: 'hard' should be one of warm-up"),
        ('"Two"', "2", "hints, 2: 2 should be of type str"),
        ("= 1", '= "1"', "parts, small: '1' should be of type int"),
        ('"small" = 1', '"small" = 1\n[exercise.read_for]\n"large" = ["02", "1"]', "read_for, large: map a part"),
    ],
)
def test_a_fault_in_a_file_of_exercises_is_named_with_its_key(tmp_path, old, new, message):
    path = tmp_path / "exercises.toml"
    path.write_text(TEXTS.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as raised:
        read_exercises(path)
    assert str(path) in str(raised.value)
