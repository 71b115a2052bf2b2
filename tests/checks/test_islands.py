"""Each student is an island: whatever is wrong with one submission costs that one, and is told in a sentence."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest

from course_lib.checks.catalog import exercises
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.runner import END
from course_lib.grading.children import Allowance, Child, ChildFailed
from course_lib.grading.gradebook import by_assignment
from course_lib.grading.grader import SEED, Grader, grade
from course_lib.grading.judge import what_was_seen
from course_lib.grading.pages import write_pages
from course_lib.grading.records import Mark, Record
from course_lib.grading.sandbox import SandboxResult
from course_lib.grading.submissions import file_name, find_submissions
from tests.checks.class_of import hand_in, need_a_sandbox

pytestmark = pytest.mark.slow

SMALL = Allowance(cpu_seconds=2, memory=4 << 30, seconds=600)


def said(*records: object) -> SandboxResult:
    """What a sandbox may have said, if whoever is in it writes its lines."""
    return SandboxResult([*(r if isinstance(r, bytes) else json.dumps(r).encode() for r in records), END])


def forged(number: str, case: int, *values: object, **fields: object) -> dict:
    outcome = dataclasses.asdict(Outcome("returned", values=values))
    return {"number": number, "case": case, "outcome": {**outcome, **fields}}


def returned(number: str, value: object) -> list[dict]:
    """That value on every rank, in every case of an exercise."""
    return [forged(number, i, *[value] * case.ranks) for i, case in enumerate(exercises()[number].cases(SEED))]


def long_schedules(row: list[str]) -> list[dict]:
    """A schedule of the right number of stages, all of them with this row."""
    cases = exercises()["06.2"].cases(SEED)
    return [forged("06.2", place, [row] * case.inputs["stages"]) for place, case in enumerate(cases)]


# What a submission says, by lesson. All of them stopped the grader once, or took it minutes.
FORGED: dict[str, tuple[str, Callable[[], SandboxResult]]] = {
    "a cell at infinity": ("02", lambda: said(b'{"cell": Infinity, "error": "KeyError", "line": 1}')),
    "a lone surrogate": ("02", lambda: said({"cell": 1, "error": "\ud800", "line": 1})),
    "150,000 numbers": (
        "02",
        lambda: said(*returned("02.2", {"dict": [["shares", {"dict": [["epoch 0", list(range(150_000))]]}]]})),
    ),
    "2,000 stages": ("06", lambda: said(*returned("06.2", [["F0", "B0"]] * 2000))),
    "stages that do the same 20,000 times": ("06", lambda: said(*long_schedules(["F0", "B0"] * 10_000))),
    "states of 5,000 ranks": (
        "02",
        lambda: said(forged("02.3", 0, kind="stuck", states=[["waiting", "all_reduce", ""]] * 5000)),
    ),
    "an endless integer": ("02", lambda: said(b'{"number": "02.1", "case": ' + b"9" * 500_000 + b"}")),
}


@pytest.mark.parametrize("name", FORGED)
def test_whatever_a_submission_says_costs_only_itself(name, tmp_path, monkeypatch):
    monkeypatch.setattr("course_lib.grading.grader.Allowance", lambda: SMALL)
    lesson, makes = FORGED[name]
    notebook = {"02": "02_ddp.ipynb", "06": "06_pipeline.ipynb"}[lesson]
    hand_in(tmp_path / "in", "eve", {"cells": []}, notebook)
    hand_in(tmp_path / "in", "zoe", {"cells": []}, notebook)
    grader, lines = Grader(tmp_path / "out", jobs=1), iter([makes(), said()])
    grader._run = lambda *_: next(lines)
    records = grader.grade(find_submissions(tmp_path / "in"))
    write_pages(records, tmp_path / "out")
    assert [(record.student, record.points) for record in records] == [("eve", 0), ("zoe", 0)]
    assert records[1].problem == ""
    assert len((tmp_path / "out" / "grades.csv").read_text().splitlines()) == 3


def spin() -> None:
    while True:
        pass


def hoard() -> int:
    return len(bytearray(16 << 30))


def leave() -> None:
    os._exit(3)


def fail() -> None:
    raise KeyError("secret")


def answer(value: object) -> object:
    return value


@pytest.mark.parametrize("task", [spin, hoard, leave, fail])
def test_a_child_that_fails_is_replaced(task):
    child = Child(threading.Event(), SMALL)
    try:
        with pytest.raises(ChildFailed) as failed:
            child.do(task)
        assert "secret" not in str(failed.value)
        assert child.do(answer, "next") == "next"
    finally:
        child.end()


def test_a_child_does_many_tasks():
    child = Child(threading.Event(), SMALL)
    try:
        assert child.do(answer, 3) == 3
        process = child._process
        assert child.do(answer, 5) == 5
        assert child._process is process
    finally:
        child.end()
    assert not process.is_alive()


def test_after_an_interrupt_no_task_is_begun_and_none_goes_on():
    stop = threading.Event()
    child = Child(stop, None)
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(CancelledError):
        child.do(spin)
    assert child._process is None
    with pytest.raises(CancelledError):
        child.do(answer, 1)


ODD_NAMES = [b"\xff" * 90, b"\xfe" * 90, b"a" * 251, b"e\xff", b"e\xfe", b"e\\xff"]
ODD_NAMES += [b"con", b"%2f", b"<b>", b"=1+1", b" =1+1"]


def test_any_name_of_a_folder_has_a_row_and_a_page_of_its_own(tmp_path):
    for name in ODD_NAMES:
        folder = os.fsencode(tmp_path / "in") + b"/" + name
        os.makedirs(folder)
        with open(folder + b"/02_ddp.ipynb", "w") as file:
            file.write("{}")
    records = Grader(tmp_path / "out").grade(find_submissions(tmp_path / "in"))
    write_pages(records, tmp_path / "out")
    assert len({record.student for record in records}) == len(ODD_NAMES)
    assert len(list((tmp_path / "out" / "pages").iterdir())) == len(ODD_NAMES)
    rows = list(csv.DictReader((tmp_path / "out" / "grades.csv").read_text().splitlines()))
    assert len(rows) == len(ODD_NAMES)
    assert not [row for row in rows if row["student"].lstrip()[:1] in tuple("=+-@")]


@pytest.mark.parametrize("name", ["ada", "Ada Lovelace", "Müller", "o'neil", "a.b", "李"])
def test_a_name_that_can_be_one_of_a_file_stays(name):
    assert file_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "a\\b", "con", "NUL.txt", "x~0123456789abcdef", "a\n", "a" * 250, "a.", "\ud800"],
)
def test_a_name_that_cannot_be_one_of_a_file_becomes_another_that_nobody_has(name):
    made = file_name(name)
    assert made != name
    assert len(made.encode()) < 100
    assert re.fullmatch(r"\w*~[0-9a-f]{16}", made)
    assert file_name(made) != made


def test_a_folder_without_a_notebook_and_a_link_to_anothers_have_a_row_and_a_sentence(tmp_path):
    hand_in(tmp_path / "in", "ada", "{}")
    (tmp_path / "in" / "ben").mkdir()
    hand_in(tmp_path / "in", "cyd", "{}", "homework.ipynb")
    (tmp_path / "in" / "eve").symlink_to(tmp_path / "in" / "ada")
    records = Grader(tmp_path / "out").grade(find_submissions(tmp_path / "in"))
    problems = {record.student: record.problem for record in records}
    assert problems.keys() == {"ada", "ben", "cyd", "eve"}
    assert problems["ben"].startswith("Nothing was handed in")
    assert problems["cyd"].startswith("Nothing was handed in")
    assert problems["eve"] == "Not graded: the folder is a link to another place."
    write_pages(records, tmp_path / "out")
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / "out" / "grades.csv").read_text().splitlines())}
    assert rows["ben"]["total"] == "0"
    assert rows["ben"]["remarks"].startswith("Nothing was handed in")


def test_a_resubmission_during_grading_is_not_lost(tmp_path):
    path = hand_in(tmp_path / "in", "ada", {"cells": []})
    grader, runs = Grader(tmp_path / "out", jobs=1), []

    def run(cells, *_) -> SandboxResult:
        path.write_text(json.dumps({"cells": [] if runs else [{"cell_type": "code", "source": "x = 0"}]}))
        runs.append(cells)
        return said()

    grader._run = run
    grader.grade(find_submissions(tmp_path / "in"))
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": "x = 0"}]}))
    grader.grade(find_submissions(tmp_path / "in"))
    assert runs == [[], ["x = 0"]]


def test_marks_are_computed_anew_when_the_points_of_an_exercise_change(tmp_path, monkeypatch):
    hand_in(tmp_path / "in", "ada", {"cells": []})

    def graded() -> int:
        grader, runs = Grader(tmp_path / "out", jobs=1), []
        grader._run = lambda *_: runs.append(1) or said()
        grader.grade(find_submissions(tmp_path / "in"))
        return len(runs)

    assert [graded(), graded()] == [1, 0]
    changed = dataclasses.replace(exercises()["02.1"], parts={**exercises()["02.1"].parts, "the mean": 9})
    monkeypatch.setitem(exercises(), "02.1", changed)
    assert [graded(), graded()] == [1, 0]


def test_a_second_download_belongs_to_the_same_assignment():
    mark = Mark("02.1", {"the mean": 1})
    records = [Record(name, name, "", [mark]) for name in ("02_ddp (1)", "02_ddp", "02_ddp-Copy1")]
    records.append(Record("ben", "", "", [], "Nothing was handed in"))
    assert [(name, len(ours)) for name, ours in by_assignment(records).items()] == [("02_ddp", 3)]


def test_what_a_page_says_of_an_error_has_no_number_of_the_submissions_choosing():
    """Neither a cell's, nor a line's, nor a call's name: each could be the seed."""
    cells = ["x = 1\n" * 5000] * 50
    lines = said({"cell": 41, "error": "KeyError", "line": 4711}, {"cell": 42, "error": "Seed4711", "line": 4711}).lines
    _, problems = what_was_seen(lines, "", cells)
    assert problems == ["One of its cells raised KeyError: restart the kernel and run all cells to see which."]


def test_what_hangs_is_told_in_calls_that_exist(tmp_path):
    hand_in(tmp_path / "in", "eve", {"cells": []})
    ranks = exercises()["02.3"].cases(SEED)[0].ranks
    states = [["waiting", "seed_is_4711", "4711"]] * (ranks - 1) + [["returned", "", ""]]
    grader = Grader(tmp_path / "out", jobs=1)
    grader._run = lambda *_: said(
        forged("02.3", 0, kind="stuck", states=states, text="4711", shown="4711", error="E4711")
    )
    (record,) = grader.grade(find_submissions(tmp_path / "in"))
    assert "4711" not in repr(record)


def test_a_broken_record_is_no_reason_to_fail(tmp_path):
    hand_in(tmp_path / "in", "ada", {"cells": []})
    path = tmp_path / "out" / "records" / "ada" / "02_ddp.json"
    path.parent.mkdir(parents=True)
    for text in ("[]", "{}", '{"marks": 3}', "[" * 100_000, '{"marks": [{"number": "99.9", "parts": {}}]}'):
        path.write_text(text)
        grader = Grader(tmp_path / "out", jobs=1)
        grader._run = lambda *_: said()
        (record,) = grader.grade(find_submissions(tmp_path / "in"))
        assert record.points == 0
        assert record.problem == ""


def test_the_grader_may_fail_for_one_and_goes_on(tmp_path):
    hand_in(tmp_path / "in", "ada", {"cells": []})
    hand_in(tmp_path / "in", "eve", {"cells": []})
    grader, results = Grader(tmp_path / "out", jobs=1), iter([None, said()])
    grader._run = lambda *_: next(results)
    first, second = grader.grade(find_submissions(tmp_path / "in"))
    assert "could not be graded: AttributeError" in first.problem
    assert second.problem == ""


SURROGATE = {"cells": [{"cell_type": "code", "source": "x = '\ud800'\ny ="}]}


def test_a_page_that_cannot_be_made_costs_only_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("course_lib.grading.grader.Allowance", lambda: Allowance(memory=64 << 20))
    problems = {"ada": "fine", "eve": "x" * (40 << 20)}
    records = [Record(name, "02_ddp", "", [], problem) for name, problem in problems.items()]
    Grader(tmp_path).write(records)
    ada, eve = ((tmp_path / "pages" / f"{name}.html").read_text() for name in ("ada", "eve"))
    assert "fine" in ada
    assert "could not be made" in eve
    assert (tmp_path / "grades.csv").exists()


def test_a_lone_surrogate_in_a_notebook_reaches_no_file(tmp_path):
    need_a_sandbox()
    hand_in(tmp_path / "in", "eve", SURROGATE)
    grade(str(tmp_path / "in"), str(tmp_path / "out"), jobs=1)
    assert re.search("SyntaxError|UnicodeEncodeError", (tmp_path / "out" / "pages" / "eve.html").read_text())
