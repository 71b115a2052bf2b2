"""The authoring tools refuse what they cannot use with one sentence, and never store what they should not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from course_lib.authoring import refresh
from course_lib.authoring.__main__ import main

CELL = {
    "cell_type": "code",
    "id": "a",
    "metadata": {},
    "source": "print(6 * 7)",
    "outputs": [],
    "execution_count": None,
}
ANSWER = {"nbgrader": {"schema_version": 3, "grade_id": "answer-01-1", "solution": True, "grade": False}}
SOLVED = "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION\n"


def notebook(path: Path, *cells: dict) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def printed_by(path: Path) -> list[str]:
    return [output["text"] for cell in json.loads(path.read_text())["cells"] for output in cell["outputs"]]


@pytest.mark.parametrize("command", ["refresh", "exercises", "slides", "read"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "this file does not exist."),
        ("# A lesson", "this is not a notebook."),
        (
            '{"cells": [], "nbformat": 3}',
            "this is not a notebook in format 4, the format that JupyterLab saves.",
        ),
        ('{"cells": [{}], "nbformat": 4}', "this notebook has no cells, or a cell without a type or metadata."),
    ],
)
def test_a_file_that_cannot_be_used_gets_one_sentence(tmp_path, capsys, command, content, says):
    path = tmp_path / "03_new.ipynb"
    if content is not None:
        path.write_text(content)
    assert main([command, str(path)]) == 2
    assert capsys.readouterr().err == f"{path}: {says}\n"
    assert content is None or path.read_text() == content


@pytest.mark.parametrize(("late", "when"), [((1.5,), "before"), ((1.0, 1.5), "after")])
def test_outputs_from_a_busy_machine_are_not_stored(tmp_path, monkeypatch, capsys, late, when):
    path, measured = notebook(tmp_path / "00_small.ipynb", CELL), iter(late)
    monkeypatch.setattr(refresh, "lateness", lambda: next(measured))
    monkeypatch.setattr(refresh, "executed", lambda _: None)
    before = path.read_bytes()
    assert main(["refresh", str(path)]) == 1
    assert f"{path}: the notebook was not stored, because {when} its run" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.slow
def test_outputs_are_stored_anyway_and_a_notebook_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(refresh, "lateness", lambda: 1.5)
    fails = notebook(tmp_path / "00_fails.ipynb", CELL | {"source": "1 / 0"})
    works = notebook(tmp_path / "01_works.ipynb", CELL)
    assert main(["refresh", "--anyway", str(fails), str(works)]) == 1
    assert "00_fails.ipynb: the notebook was not stored, because it did not run to its end." in capsys.readouterr().err
    assert (printed_by(fails), printed_by(works)) == ([], [["42\n"]])
    assert sorted(tmp_path.iterdir()) == [fails, works]


@pytest.mark.slow
def test_an_exercise_is_its_solution_without_the_answer(tmp_path):
    solution = notebook(tmp_path / "solutions" / "01_new.ipynb", CELL | {"source": SOLVED, "metadata": ANSWER})
    assert main(["exercises", str(solution)]) == 0
    made = (tmp_path / "exercises" / "01_new.ipynb").read_text()
    assert "YOUR CODE HERE" in made
    assert "2 * x" not in made


def test_an_exercise_is_not_taken_for_a_solution(tmp_path, capsys):
    path = notebook(tmp_path / "exercises" / "01_new.ipynb", CELL | {"metadata": ANSWER})
    before = path.read_bytes()
    assert main(["exercises", str(path)]) == 1
    assert f"{path}: it is not a solution" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_reading_reports_what_is_missing(tmp_path, capsys):
    path = notebook(tmp_path / "draft.ipynb", CELL)
    assert main(["read", str(path)]) == 1
    assert "draft, cell 0: the name of its file does not begin with the number" in capsys.readouterr().out
