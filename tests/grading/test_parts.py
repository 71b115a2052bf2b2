"""A class that is graded in parts has the marks that it has in one go, and merging notices what does not fit."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from course_lib.checks.catalog import exercises
from course_lib.checks.inside.runner import END
from course_lib.command import main, make_parser
from course_lib.grading import grader
from course_lib.grading.grader import Grader, grade
from course_lib.grading.parts import Part
from course_lib.grading.sandbox import SandboxResult
from course_lib.grading.submissions import BadSubmissions
from tests.checks.class_of import ROOT, hand_in

STUDENTS = ["ada", "alan", "barbara", "edsger", "grace", "ken", "éva", "a b", "=1+1"]
PARTS = 3


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A class of small notebooks. What the sandbox would say is made up: points for 02.3, more for longer names."""

    def run(self, cells, ours, cases):
        said = []
        for number in (each.number for each in ours if each.number == "02.3"):
            for place, case in enumerate(cases[number]):
                totals, counts = case.inputs["totals"], case.inputs["counts"]
                right = sum(totals) / max(sum(counts), 1)
                value = right if cells == ["right"] or (cells == ["half"] and 0 not in counts) else right + 1
                outcome = {"kind": "returned", "values": [value] * case.ranks, "error": "", "text": "", "cell": ""}
                outcome |= {"line": 0, "shown": "", "states": [], "in_flight": [], "noticed": ""}
                said.append(json.dumps({"number": number, "case": place, "outcome": outcome}).encode())
        return SandboxResult([*said, END])

    monkeypatch.setattr(Grader, "_run", run)
    monkeypatch.setattr(grader.sandbox, "check_sandbox", lambda: None)
    for place, name in enumerate(STUDENTS):
        text = ["right", "half", "wrong"][place % 3]
        hand_in(tmp_path / "in", name, {"cells": [{"cell_type": "code", "source": text}]})
    hand_in(tmp_path / "in", "broken", "not JSON")
    hand_in(tmp_path / "in", "odd", "not JSON", "notes.txt")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "in" / "ada")
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "seed.txt").write_text("0" * 32)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "seed.txt").write_text("0" * 32)
    return tmp_path


def in_parts(folder: Path, *numbers: int) -> None:
    for number in numbers or range(1, PARTS + 1):
        grade(str(folder / "in"), str(folder / "parts"), jobs=1, part=(number, PARTS))


def merge(folder: Path) -> str:
    return grade(str(folder / "in"), str(folder / "parts"), jobs=1, merge=True)


@pytest.mark.slow
def test_marks_and_pages_are_those_of_one_go(folder):
    grade(str(folder / "in"), str(folder / "whole"), jobs=1)
    in_parts(folder, 2, 3, 1)
    assert not (folder / "parts" / "grades.csv").exists()
    merge(folder)
    results = [path for path in (folder / "whole").rglob("*") if path.suffix in (".html", ".csv")]
    assert len(results) == len(STUDENTS) + 5
    for path in results:
        assert (folder / "parts" / path.relative_to(folder / "whole")).read_bytes() == path.read_bytes()
    points = {row.split(",")[-4] for row in (folder / "whole" / "grades.csv").read_text().splitlines()[1:]}
    assert len(points) >= 3, "the students have different marks"


def test_a_part_is_the_same_students_whoever_else_hands_in():
    parts = [[name for name in STUDENTS if Part(number, PARTS).has(name)] for number in range(1, PARTS + 1)]
    assert sorted(name for part in parts for name in part) == sorted(STUDENTS)
    many = [f"student {number}" for number in range(3000)]
    sizes = [sum(map(Part(number, 8).has, many)) for number in range(1, 9)]
    assert sum(sizes) == 3000
    assert max(sizes) < 1.5 * min(sizes)


@pytest.mark.slow
def test_merging_refuses_what_does_not_fit_together(folder):
    with pytest.raises(BadSubmissions, match="there are no parts"):
        merge(folder)
    in_parts(folder, 1, 3)
    with pytest.raises(BadSubmissions, match="part 2/3 is missing"):
        merge(folder)
    in_parts(folder, 2)
    other = folder / "parts" / "parts" / "1-of-4.json"
    other.write_text(json.dumps({"part": 1, "of": 4, "checks": "", "records": []}))
    with pytest.raises(BadSubmissions, match="mixes divisions into 3, 4 parts"):
        merge(folder)
    other.unlink()
    hand_in(folder / "in", "ada", {"cells": []})
    with pytest.raises(BadSubmissions, match="ada: the current version of 02_ddp is not in the parts"):
        merge(folder)
    in_parts(folder)
    merge(folder)
    (folder / "parts" / "seed.txt").write_text("1" * 32)
    with pytest.raises(BadSubmissions, match="a different seed"):
        merge(folder)


ODD = [pytest.param(points, marks=pytest.mark.slow) for points in (1000, -1, 1.5, True, "3", None)]


@pytest.mark.slow
@pytest.mark.parametrize("points", [float("nan"), *ODD])
def test_a_record_says_no_more_points_than_there_are(folder, points):
    in_parts(folder)
    file = next(file for file in (folder / "parts" / "parts").iterdir() if '"ada"' in file.read_text())
    content = json.loads(file.read_text())
    (record,) = (record for record in content["records"] if record["student"] == "ada")
    part = next(iter(exercises()["02.3"].parts))
    mark = next(mark for mark in record["marks"] if mark["number"] == "02.3")
    assert mark["parts"][part] > 0
    mark["parts"][part] = points
    file.write_text(json.dumps(content))
    with pytest.raises(BadSubmissions, match="is damaged"):
        merge(folder)
    saved = folder / "parts" / "records" / "ada" / "02_ddp.json"
    saved.write_text(json.dumps(record))
    in_parts(folder)
    merge(folder)
    row = next(row for row in (folder / "parts" / "grades.csv").read_text().splitlines() if row.startswith("ada,"))
    assert row.split(",")[-4] == str(sum(exercises()["02.3"].parts.values()))


@pytest.mark.parametrize("words", ["--part 0/3", "--part 4/3", "--part 3", "--part 1/3 --merge", "--merge --again"])
def test_what_cannot_be_a_part_gets_a_sentence(words, capsys):
    assert main(["grade", "in", "--out", "out", *words.split()]) == 2
    assert capsys.readouterr().err.startswith("course: ")


@pytest.mark.parametrize("file", ["grade-array.sbatch", "grade-job.yaml", "grade-matrix.yml", "grading.md"])
def test_the_commands_of_the_page_are_commands(file):
    text = (ROOT / "docs" / "deploy" / file).read_text()
    known = {
        "$SLURM_ARRAY_TASK_ID/$PARTS": "1/8",
        "$((JOB_COMPLETION_INDEX + 1))/8": "1/8",
        "$SLURM_CPUS_PER_TASK": "4",
    }
    known |= {"${{ matrix.part }}/8": "1/8"}
    for words, value in known.items():
        text = text.replace(f'"{words}"', value)
    commands = re.findall(r"course grade ([^'\"#\n`]*)", text)
    commands = [words for words in commands if "--" in words]
    assert commands
    for words in commands:
        options = make_parser().parse_args(["grade", *shlex.split(words)])
        assert options.explain or (options.submissions, options.out) == ("submitted", "grades")
