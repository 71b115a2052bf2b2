"""The home page of a desk: what it says of the lessons, of what is done, and of what comes next."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from course_lib.checks.catalog import LESSONS, exercises, predictions
from course_lib.drawing.picture import COLORS as OF_THE_COURSE
from course_lib.lab.cards import COLORS
from course_lib.lab.desk import Desk, lay_out
from course_lib.lab.home import home


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home") / "desk"
    lay_out(Desk(folder))
    return folder


def after(desk, **progress) -> dict:
    (desk / "progress.json").write_text(json.dumps(progress))
    return home(desk)


def test_every_lesson_has_a_card_with_all_its_predictions_and_exercises(desk):
    shown = after(desk)
    assert [lesson["number"] for lesson in shown["lessons"]] == list(LESSONS)
    assert (shown["predicted"], shown["passed"]) == ([0, len(predictions())], [0, len(exercises())])
    assert all(lesson["minutes"] > 30 and lesson["picture"].startswith("<svg") for lesson in shown["lessons"])
    assert not shown["begun"]


def test_it_continues_at_the_section_of_the_first_open_prediction_then_with_exercises(desk):
    made = {"02.1": {"said": "a", "right": False}, "02.2": {"skipped": True}}
    shown = after(desk, predictions=made)
    assert shown["begun"]
    assert shown["next"]["words"].startswith("02, section ")
    assert shown["next"]["path"] == "notebooks/02_ddp.ipynb"
    lesson = shown["lessons"][2]
    assert (lesson["predicted"][0], lesson["surprised"]) == (1, 1)
    made = {number: {"skipped": True} for number in predictions() if number < "03"}
    shown = after(desk, predictions=made, **{"02.1": {"tries": 1, "points": 3}, "02.2": {"tries": 2, "points": 1}})
    assert shown["next"]["words"].startswith("exercise 02.2, ")
    assert shown["lessons"][2]["passed"] == [1, 4]


def test_it_continues_after_what_was_done_last_and_comes_back_to_what_was_passed_over(desk):
    *_, before, last = [number for number in predictions() if number < "01"]
    made = {before: {"said": "a", "right": True}}
    assert after(desk, predictions=made)["next"]["words"].startswith("00, section ")
    made[last] = {"skipped": True}
    assert after(desk, predictions=made)["next"]["words"].startswith("exercise 00.1, ")
    done = {number: {"points": found.points, "tries": 1} for number, found in exercises().items() if number < "01"}
    assert after(desk, predictions=made, **done)["next"]["words"].startswith("00, section 1 ")


def test_a_copy_that_the_learner_has_kept_is_not_the_lesson(desk):
    copy = desk / "notebooks" / "02_ddp (yours).ipynb"
    copy.write_bytes((desk / "notebooks" / "02_ddp.ipynb").read_bytes())
    assert after(desk)["lessons"][2]["path"] == "notebooks/02_ddp.ipynb"
    copy.unlink()


@pytest.mark.parametrize("broken", ["", "[]", '{"predictions": [], "02.1": 3}'])
def test_a_broken_progress_file_is_no_progress(desk, broken):
    (desk / "progress.json").write_text(broken)
    assert home(desk)["predicted"][0] == 0


def test_a_card_has_the_courses_colors():
    shared = set(COLORS) & set(OF_THE_COURSE)
    assert len(shared) == 7
    assert {name: COLORS[name] for name in shared} == {name: OF_THE_COURSE[name] for name in shared}


def test_the_page_does_without_pytorch():
    code = "import sys, course_lib.lab.home; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
