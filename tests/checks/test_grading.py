"""Grading a class: partial credit, records that survive, notebooks that are broken, and nbgrader beside it."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.checks.catalog import exercises
from course_lib.checks.notebooks import code_of
from course_lib.grading.grader import SEED, Grader
from course_lib.grading.judge import is_metered, what_was_seen
from course_lib.grading.pages import page, write_pages
from course_lib.grading.records import Record
from course_lib.grading.submissions import BadSubmissions, find_submissions
from course_lib.grading.summary import table
from course_lib.runtime.course_files import read
from tests.checks.class_of import (
    EXERCISE,
    ROOT,
    SOLUTION,
    hand_in,
    need_a_sandbox,
    patient_grader,
    right_answers,
    with_answers,
    with_first_cell,
)
from tests.conftest import PATIENCE

HALF_RIGHT = {
    "_1": "def average_gradients(model):\n    for p in model.parameters():\n"
    "        if p.grad is not None:\n            dist.all_reduce(p.grad)",
    "_2": "def my_share(count, rank, ranks, epoch, seed):\n"
    "    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))\n    return order[rank::ranks]",
    "_3": "def evaluate_together(total, count):\n    return total / count",
}
BROKEN = {
    "not JSON": '{"cells": [',
    "not a notebook": "[1, 2]",
    "no cells": "{}",
    "cells of another kind": json.dumps({"cells": [1, None]}),
    "empty": "",
}


@pytest.fixture(scope="module", autouse=True)
def sandboxed() -> Iterator[None]:
    """Nobody hangs here: on a busy machine, an honest answer may take its time."""
    need_a_sandbox()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("course_lib.grading.runs.TIMEOUT", float(PATIENCE))
        yield


@pytest.fixture(scope="module")
def folder_of_the_class(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("class")


@pytest.fixture(scope="module")
def graded(folder_of_the_class) -> dict[str, Record]:
    """A class in which everything that can be wrong with a notebook is wrong with one."""
    folder = folder_of_the_class
    hand_in(folder / "in", "good", SOLUTION)
    hand_in(folder / "in", "half", with_answers(**HALF_RIGHT))
    hand_in(folder / "in", "stub", EXERCISE)
    hand_in(folder / "in", "syntax", with_answers(_1="def average_gradients(model)\n    pass", _2="", _3="x ="))
    bare = {"cells": [{"cell_type": "code", "source": "import torch, torch.distributed as dist\n" + right_answers()}]}
    hand_in(folder / "in", "no metadata", bare)
    for name, text in BROKEN.items():
        hand_in(folder / "in", name, text)
    records = patient_grader(folder / "out").grade(find_submissions(folder / "in"))
    return {record.student: record for record in records}


@pytest.mark.slow
def test_right_answers_earn_everything_with_or_without_metadata(graded):
    assert graded["good"].points == graded["good"].most == 15
    assert graded["no metadata"].points == 15
    assert graded["good"].problem == graded["no metadata"].problem == ""


@pytest.mark.slow
def test_half_right_answers_earn_their_parts_and_are_told_their_mistakes(graded):
    marks = {mark.number: mark for mark in graded["half"].marks}
    assert marks["02.2"].parts == {"every example once": 2, "equal shares": 1, "a new order every epoch": 0}
    assert "The epoch must change the seed" in marks["02.2"].remarks["a new order every epoch"]
    assert "sum of the gradients" in marks["02.1"].remarks["the mean"]
    assert "raises ZeroDivisionError." in marks["02.3"].remarks["a rank without examples"]
    assert graded["half"].points == 3


@pytest.mark.slow
def test_a_stub_is_not_attempted(graded):
    assert graded["stub"].points == 0
    assert not any(mark.attempted for mark in graded["stub"].marks)
    assert page("stub", [graded["stub"]]).count("Not attempted") == 4


@pytest.mark.slow
def test_a_syntax_error_costs_its_cell_and_is_reported(graded):
    assert "Code cell 2 raised SyntaxError at “def average_gradients(model)”" in graded["syntax"].problem
    assert graded["syntax"].points == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_notebook_costs_only_itself(graded, name):
    assert graded[name].points == 0
    assert "not a notebook" in graded[name].problem


@pytest.mark.slow
def test_a_page_and_the_table_show_points_mistakes_and_what_to_read(graded):
    text = page("half", [graded["half"]])
    assert "half: 3 of 15 points" in text
    assert "as <code>set_epoch</code> does" in text
    assert text.count("sum of the gradients") == 1
    assert "unused parameters: the same." in text
    assert "Read again: lesson 02, “4 · Who reads what”" in text
    rows = {row["student"]: row for row in csv.DictReader(table(list(graded.values())).splitlines())}
    assert rows["half"] | {"02.1": "0", "02.2": "3", "02.3": "0", "total": "3", "of": "15"} == rows["half"]
    assert "not a notebook" in rows["not JSON"]["remarks"]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, graded, folder_of_the_class):
    shutil.copytree(folder_of_the_class, tmp_path, dirs_exist_ok=True)
    hand_in(tmp_path / "in", "late", "not JSON")
    second = Grader(tmp_path / "out")
    second._run = lambda *_: pytest.fail("it was graded already")
    records = {record.student: record for record in second.grade(find_submissions(tmp_path / "in"))}
    assert "late" in records
    assert {name: record for name, record in records.items() if name != "late"} == graded


@pytest.mark.slow
def test_again_a_changed_submission_and_a_torn_record_are_graded_anew_to_the_same_marks(tmp_path):
    def grade(**options) -> Record:
        (record,) = patient_grader(tmp_path / "out").grade(find_submissions(tmp_path / "in"), **options)
        return record

    path = hand_in(tmp_path / "in", "half", with_answers(**HALF_RIGHT))
    first = grade()
    assert grade(again=True) == first
    path.write_text(json.dumps(with_first_cell(with_answers(**HALF_RIGHT), "x = 1")))
    third = grade()
    assert third.marks == first.marks
    assert third.key != first.key
    (tmp_path / "out" / "records" / "half" / "02_ddp.json").write_text('{"student": "ha')
    assert grade() == third


def test_of_several_notebooks_for_a_lesson_one_is_graded_and_the_others_are_named(tmp_path):
    """Twice the same answers are not twice the points."""
    hand_in(tmp_path, "good", SOLUTION, "old/02_ddp.ipynb")
    hand_in(tmp_path, "good", SOLUTION, "02_ddp-Copy1.ipynb")
    hand_in(tmp_path, "good", "not JSON")
    hand_in(tmp_path, "other", SOLUTION, "assignment/02_ddp.ipynb")
    first, second = find_submissions(tmp_path)
    assert first.path == tmp_path / "good" / "02_ddp.ipynb"
    assert (second.student, second.others) == ("other", ())
    (record,) = Grader(tmp_path / "out").grade([first])
    assert record.points == 0
    assert "Not graded, because 02_ddp.ipynb was: good/02_ddp-Copy1.ipynb, old/02_ddp.ipynb." in record.problem


def test_of_very_many_files_the_highest_are_looked_at(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("course_lib.grading.submissions.MOST_FILES", 100)
    hand_in(tmp_path, "eve", SOLUTION)
    hand_in(tmp_path, "eve", SOLUTION, "deep/er/04_accumulation.ipynb")
    for number in range(200):
        (tmp_path / "eve" / "deep" / str(number)).touch()
    hand_in(tmp_path, "zoe", SOLUTION)
    assert [(each.student, each.lesson) for each in find_submissions(tmp_path)] == [("eve", "02"), ("zoe", "02")]
    assert capsys.readouterr().err == "course: eve: more than 100 files; the deepest are left out\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "pipe", "endless file", "link", "name of odd bytes"])
def test_what_is_no_file_of_text_costs_only_itself(tmp_path, kind):
    path = hand_in(tmp_path / "in", "eve", "{}")
    if kind == "name of odd bytes":
        os.rename(path.parent, os.fsencode(path.parent) + b"\xff")
    elif kind == "endless file":
        os.truncate(path, 1 << 40)
    else:
        path.unlink()
        {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("/dev/zero")}[kind]()
    hand_in(tmp_path / "in", "zoe", "{}")
    records = Grader(tmp_path / "out").grade(find_submissions(tmp_path / "in"))
    write_pages(records, tmp_path / "out")
    assert len(list((tmp_path / "out" / "pages").iterdir())) == 2
    for record in records:
        assert record.points == 0
        assert re.search("not a notebook|larger than", record.problem)


@pytest.mark.slow
def test_grades_do_not_lie_where_submissions_can_read(tmp_path):
    hand_in(tmp_path / "in", "good", SOLUTION)
    shown = Path(sys.prefix) / "grades"
    done = course("grade", tmp_path / "in", "--out", shown)
    assert (done.returncode, shown.exists()) == (2, False)
    assert "every submission could read what is in it" in done.stderr


def test_a_folder_without_submissions_gets_a_sentence(tmp_path):
    for folder, says in ((tmp_path / "none", "is not a folder"), (tmp_path, "a folder for each student")):
        with pytest.raises(BadSubmissions, match=says):
            find_submissions(folder)


def course(*arguments: str | Path, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "course_lib", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **options)


TOTALS = {"good": "15", "half_right": "6", "hostile": "0"}


@pytest.mark.parametrize("students", [["half_right", "hostile"], pytest.param(list(TOTALS), marks=pytest.mark.slow)])
def test_one_command_grades_the_example_class_into_pages_and_a_table(tmp_path, students):
    for student in students:
        shutil.copytree(ROOT / "tests" / "checks" / "example_class" / student, tmp_path / "in" / student)
    done = course("grade", tmp_path / "in", "--out", tmp_path / "out", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert f"{len(students)} notebooks of {len(students)} students" in done.stdout
    assert len(list((tmp_path / "out" / "pages").iterdir())) == len(students)
    rows = csv.DictReader((tmp_path / "out" / "grades.csv").read_text().splitlines())
    assert {row["student"]: row["total"] for row in rows} == {student: TOTALS[student] for student in students}


@pytest.mark.slow
def test_marks_go_into_nbgraders_gradebook(tmp_path):
    from nbgrader.api import Gradebook

    database = f"sqlite:///{tmp_path}/gradebook.db"
    done = course("grade", "tests/checks/example_class", "--out", tmp_path, "--gradebook", database, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    with Gradebook(database) as book:
        scores = {each.student_id: (each.score, each.max_score) for each in book.assignment_submissions("02_ddp")}
    assert scores == {"good": (15.0, 15.0), "half_right": (6.0, 15.0), "hostile": (0.0, 15.0)}


@pytest.mark.slow
def test_without_bubblewrap_it_refuses_and_says_what_that_risks(tmp_path):
    hand_in(tmp_path / "in", "good", SOLUTION)
    done = course("grade", "in", "--out", "grades", cwd=tmp_path, env={"PATH": "", "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert "bwrap is not installed" in done.stderr
    assert "--no-sandbox" in done.stderr
    assert not (tmp_path / "grades").exists()


@pytest.mark.slow  # the quicker neighbor: test_the_exercise_is_made_from_the_solution
def test_nbgrader_makes_the_same_release_and_validates_the_solutions(tmp_path):
    solutions = sorted((ROOT / "solutions").glob("*.ipynb"))
    shutil.copytree(ROOT / "solutions", tmp_path / "source" / "course")
    (tmp_path / "nbgrader_config.py").write_text(f"c = get_config()\nc.CourseDirectory.root = {str(tmp_path)!r}\n")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= {"PYTHONPATH": str(ROOT), "COURSE_LIB_PROGRESS": str(tmp_path / "progress.json")}

    def nbgrader(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "nbgrader", *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    nbgrader("generate_assignment", "course")
    release = tmp_path / "release" / "course"
    for solution in solutions:
        assert code_of(read(release / solution.name)) == code_of(read(ROOT / "exercises" / solution.name))
    first = solutions[0].name  # nbval runs all of them
    assert "Success" in nbgrader("validate", ROOT / "solutions" / first)
    assert "VALIDATION FAILED" in nbgrader("validate", release / first)


@pytest.mark.slow
def test_every_exercise_runs_in_the_sandbox(tmp_path):
    """What drives an answer travels into it by value: it must find all it needs there."""
    cells = [cell for path in sorted((ROOT / "solutions").glob("*.ipynb")) for cell in code_of(read(path))]
    grader = patient_grader(tmp_path)
    ours = list(exercises().values())
    cases = {number: cases[:1] for number, cases in grader.cases_of("ada", b"", ours).items()}
    ended = grader._run(cells, ours, cases)
    outcomes, problems = what_was_seen(ended.lines, ended.reason, cells)
    assert not problems
    assert {number: outcome.kind for (number, _), outcome in outcomes.items()} == dict.fromkeys(exercises(), "returned")
    unmetered = {number for number, exercise in exercises().items() if not is_metered(exercise)}
    assert {number: outcome.noticed for (number, _), outcome in outcomes.items() if outcome.noticed}.keys() <= unmetered


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_student_who_solves_the_whole_course_gets_all_points(tmp_path):
    solutions = sorted((ROOT / "solutions").glob("*.ipynb"))
    for path in solutions:
        hand_in(tmp_path / "in", "good", read(path), path.name)
    records = patient_grader(tmp_path / "out").grade(find_submissions(tmp_path / "in"))
    most = {path.stem: 0 for path in solutions}
    for exercise in exercises().values():
        most[next(name for name in most if name.startswith(exercise.lesson))] += exercise.points
    found = {record.notebook: (record.points, record.problem) for record in records}
    assert found == {name: (points, "") for name, points in most.items()}
    assert not [record for record in records if record.flagged], "no meter finds itself blinded"


@pytest.mark.slow
def test_a_part_that_is_lost_takes_no_more_time(tmp_path):
    """Other answers in the notebook need it."""
    raises = with_answers(_1="def average_gradients(model):\n    raise KeyError(1)", _2="", _3="")
    ours = [exercises()["02.1"]]
    cases = {"02.1": ours[0].cases(SEED)}
    outcomes, _ = what_was_seen(patient_grader(tmp_path)._run(code_of(raises), ours, cases).lines, "", code_of(raises))
    parts = [case.part for case in cases["02.1"]]
    kinds = [outcomes["02.1", place].kind for place in range(len(parts))]
    assert kinds == ["raised" if part not in parts[:place] else "missing" for place, part in enumerate(parts)]
