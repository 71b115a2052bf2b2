"""What grading does not take on trust: folders after the scan, names of exceptions, and calls of checks in cells."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

from course_lib.checks.inside.observe import observe
from course_lib.checks.notebooks import run_cells
from course_lib.grading import protection
from course_lib.grading.pages import write_pages
from course_lib.grading.records import Record
from course_lib.grading.submissions import find_submissions
from course_lib.runtime.course_files import BadNotebook
from tests.checks.class_of import EXERCISE, SOLUTION, hand_in


@pytest.mark.parametrize("becomes_a_link", ["", "week 1", "week 1/done"])
def test_a_folder_that_becomes_a_link_after_the_scan_is_not_followed(tmp_path, becomes_a_link):
    hand_in(tmp_path / "ours", "week 1/done", SOLUTION)
    hand_in(tmp_path / "in", "eve/week 1/done", EXERCISE)
    (submitted,) = find_submissions(tmp_path / "in")
    assert submitted.content()
    folder = tmp_path / "in" / "eve" / becomes_a_link
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path / "ours" / becomes_a_link)
    assert submitted.path.is_file(), "by its path, there is a file"
    with pytest.raises(BadNotebook, match="a link to another"):
        submitted.content()


def test_the_folder_of_all_students_may_be_a_link(tmp_path):
    hand_in(tmp_path / "real", "ada", EXERCISE)
    (tmp_path / "in").symlink_to(tmp_path / "real")
    (submitted,) = find_submissions(tmp_path / "in")
    assert submitted.content() == (tmp_path / "real" / "ada" / "02_ddp.ipynb").read_bytes()
    assert len(os.listdir("/proc/self/fd")) < 200


def test_pages_written_at_once_do_not_share_a_temporary_file(tmp_path):
    """Two graders, or a grader and whoever looks for leftovers: each has a name that nobody else has."""
    records = [Record(f"student {number}", "02_ddp", "", [], "x" * 1000) for number in range(20)]
    failed = []

    def write() -> None:
        try:
            write_pages(records, tmp_path)
        except OSError as error:
            failed.append(error)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert not failed
    assert len(list((tmp_path / "pages").iterdir())) == 20


CELLS = """
from course_lib.checks import check, hint, solution
import course_lib.checks as checks
def average(model):
    return model
check(
    "02.1",
    average
)
if True:
    hint("02.1")
checks.progress()
told = check("02.1", average)
"""


def test_checks_in_cells_do_nothing_however_they_are_written():
    import course_lib.checks as checks

    real = checks.check
    names, problems = run_cells({"cells": [{"cell_type": "code", "source": CELLS}]})
    assert problems == []
    assert names["told"] == 0.0
    assert names["average"](3) == 3
    assert checks.check is real


def raises(answer):
    raise type("Odd: name", (Exception,), {})(" raised twice: here\n\nmore")


def test_an_exception_is_told_by_its_name_and_text_whatever_they_contain():
    outcome = observe(raises, None, 1, {}, 60, quiet=True)
    assert (outcome.kind, outcome.error, outcome.text) == ("raised", "Odd: name", " raised twice: here")


def test_what_cannot_be_enforced_is_said_before_a_class_is_graded(monkeypatch, capsys):
    known = [protection.Protection("walls", True), protection.Protection("a roof", False, "only root can build one")]
    monkeypatch.setattr(protection, "protections", lambda: known)
    protection.say_what_is_missing()
    assert capsys.readouterr().err == "course: not enforced here: a roof: only root can build one\n"
