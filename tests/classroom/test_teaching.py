"""The instructor's pages are what the lessons, predictions, exercises and notes say today, and leave nothing out."""

from __future__ import annotations

import pytest

from course_lib.authoring.outline import outlines
from course_lib.checks.catalog import exercises, predictions
from course_lib.classroom.teaching import OPENING, pages, prediction_block, read_notes
from course_lib.runtime.course_files import course_folder

NOTHING_TO_SAY = {"Recap", "Where this comes from", "The map of the course"}
FOLDER = course_folder() / "docs" / "teaching"


@pytest.fixture(scope="module")
def made():
    return pages()


def test_the_pages_are_fresh(made):
    stored = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md") if path.name != "README.md"}
    assert sorted(stored) == sorted(made)
    assert [name for name in made if stored[name] != made[name]] == [], "run `make teaching`"


@pytest.mark.parametrize("number", outlines())
def test_every_section_has_what_to_say_and_what_goes_wrong(number):
    notes = read_notes(number)
    headings = [section.heading for section in outlines()[number].sections if section.heading not in NOTHING_TO_SAY]
    assert sorted(notes) == sorted([OPENING, *headings])
    for heading in headings:
        assert notes[heading].startswith("**Say.** "), heading
        assert "\n\n**What goes wrong.** " in notes[heading], heading


def test_every_prediction_and_every_exercise_is_on_its_page(made):
    for number, prediction in predictions().items():
        page = made[f"{outlines()[number[:2]].name}.md"]
        assert prediction_block(prediction) in page, number
        assert all(choice.believes in page for choice in prediction.choices)
    for number, exercise in exercises().items():
        if exercise.lesson in outlines():
            assert f"### {number} {exercise.title}\n" in made[f"{outlines()[exercise.lesson].name}.md"]


def test_a_prediction_tells_the_right_choice_from_the_wrong_ones():
    block = prediction_block(predictions()["06.2"])
    assert "> - **b) 22 units; 4** is right." in block
    assert "> - c) 22 units; 8: believes *The same time, the same memory*." in block
