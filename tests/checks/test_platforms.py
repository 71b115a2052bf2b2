"""Marks for learning platforms: their columns, their rows, and no name that becomes a formula."""

from __future__ import annotations

import csv

import pytest

from course_lib.checks.catalog import exercises
from course_lib.grading.platforms import BadStudents, platform_table, read_students
from tests.checks.test_pages import HOSTILE, mark, not_tried, record

MOST = sum(exercise.points for exercise in exercises().values() if exercise.lesson == "02")
MOODLE = """First name,Last name,ID number,Email address,Assignment: 02_ddp (Real)
Ada,Lovelace,1815,ada@example.org,-
Grace,Hopper,1906,grace@example.org,-
Grace,Hopper,1907,other@example.org,-
"""
CANVAS = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,02_ddp (4711)
    Points Possible,,,,,12
"Lovelace, Ada",7,u1815,ada,Morning,
"""


def whole(student: str):
    numbers = [number for number, exercise in exercises().items() if exercise.lesson == "02"]
    return record(student, *map(mark, numbers))


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines()))


def exported(tmp_path, text: str) -> str:
    path = tmp_path / "export.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_moodle_gets_its_own_rows_and_columns_back(tmp_path):
    students = read_students(exported(tmp_path, MOODLE), "moodle")
    text, unknown = platform_table([whole("1815"), whole("ADA lovelace x"), whole("Grace Hopper")], "moodle", students)
    header, ada = rows(text)
    assert header == ["First name", "Last name", "ID number", "Email address", "Assignment: 02_ddp (Real)"]
    assert ada == ["Ada", "Lovelace", "1815", "ada@example.org", str(MOST)]
    assert unknown == ["ADA lovelace x", "Grace Hopper"]  # nobody, and two


def test_every_student_has_the_marks_of_their_own(tmp_path):
    students = read_students(exported(tmp_path, MOODLE), "moodle")
    none = record("1906", not_tried("02.1"))
    text, _ = platform_table([whole("1815"), none, whole("1907")], "moodle", students)
    assert [(row[2], row[-1]) for row in rows(text)[1:]] == [("1815", str(MOST)), ("1906", "0"), ("1907", str(MOST))]


def test_canvas_gets_the_row_of_possible_points(tmp_path):
    students = read_students(exported(tmp_path, CANVAS), "canvas")
    text, unknown = platform_table([whole("ada")], "canvas", students)
    assert rows(text) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "02_ddp (4711)"],
        ["    Points Possible", "", "", "", "", str(MOST)],
        ["Lovelace, Ada", "7", "u1815", "ada", "Morning", str(MOST)],
    ]
    assert unknown == []


def test_without_an_export_the_folders_names_say_who_it_is():
    (header, *found) = rows(platform_table([whole("ada@example.org"), whole("grace")], "moodle")[0])
    assert [dict(zip(header, row, strict=True))["Email address"] for row in found] == ["ada@example.org", ""]
    assert [dict(zip(header, row, strict=True))["Username"] for row in found] == ["", "grace"]


@pytest.mark.parametrize("platform", ["moodle", "canvas"])
def test_no_name_becomes_a_formula(platform):
    text, _ = platform_table([whole(name) for name in [*HOSTILE, "@SUM(A1)", "-2+3", "+1"]], platform)
    assert not any(cell.lstrip().startswith(("=", "+", "-", "@")) for row in rows(text) for cell in row)


def test_an_exported_name_becomes_no_formula_either(tmp_path):
    students = read_students(exported(tmp_path, MOODLE.replace("Ada,", '"=HYPERLINK(""http://x"")",')), "moodle")
    text, _ = platform_table([whole("1815")], "moodle", students)
    assert rows(text)[1][0].startswith("'=")


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", 'First name,"broken\n', "First name\x00"])
def test_what_is_no_export_is_a_sentence(tmp_path, text):
    with pytest.raises(BadStudents, match=r"export"):
        read_students(exported(tmp_path, text), "moodle")


def test_bytes_that_are_no_text_are_a_sentence(tmp_path):
    (tmp_path / "export.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadStudents, match="UTF-8"):
        read_students(str(tmp_path / "export.csv"), "moodle")
