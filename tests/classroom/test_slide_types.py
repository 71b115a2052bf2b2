"""Every cell of a lesson has its place on a slide, by rule; no question stands on a screen with its answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from course_lib.authoring.outline import ASKS, asks_question, begins_section, marked, outlines, slide_types
from course_lib.course_files import source
from course_lib.lab.merge import without_outputs

LESSONS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


def text(words: str) -> dict:
    return {"cell_type": "markdown", "source": words, "metadata": {}}


def code(words: str, *printed: str) -> dict:
    outputs = [{"output_type": "stream", "name": "stdout", "text": "\n".join(printed)}] if printed else []
    return {"cell_type": "code", "source": words, "metadata": {}, "outputs": outputs}


LONG = " ".join(["a sentence that nobody reads from a wall"] * 30)


@pytest.mark.parametrize("path", LESSONS, ids=[path.stem for path in LESSONS])
def test_the_lessons_are_marked_by_the_rule_and_nothing_else_is_touched(path):
    assert path.read_text(encoding="utf-8") == marked(path), "run `make teaching`"


@pytest.mark.parametrize("path", LESSONS, ids=[path.stem for path in LESSONS])
def test_every_section_begins_a_slide_and_nothing_else_does(path):
    cells = json.loads(path.read_text())["cells"]
    begin = [place for place, kind in enumerate(slide_types(cells)) if kind == "slide"]
    assert begin == [0, *(place for place, cell in enumerate(cells) if begins_section(cell))]
    assert len(begin) > 8


@pytest.mark.parametrize("path", LESSONS, ids=[path.stem for path in LESSONS])
def test_what_follows_a_question_is_on_another_screen(path):
    cells = json.loads(path.read_text())["cells"]
    kinds = slide_types(cells)
    questions = [place for place, cell in enumerate(cells) if asks_question(cell)]
    assert len(questions) > 3
    for place in questions:
        behind = [p for p in range(place + 1, len(cells)) if kinds[p] not in ("skip", "notes")]
        boxes_behind = [p for p in behind if ASKS.search(source(cells[p]))]
        if boxes_behind[:1] != behind[:1]:  # a box may say in full what the text above it asks
            assert kinds[behind[0]] in ("slide", "subslide"), source(cells[place])


def test_a_desk_keeps_the_marks():
    notebook = without_outputs(json.loads(LESSONS[0].read_text()))
    assert notebook["cells"][0]["metadata"] == {"slideshow": {"slide_type": "slide"}}


def test_a_question_its_run_and_what_explains_it_come_one_after_another():
    cells = [text("## 1"), code('predict("00.1")'), code("run()", "100"), code('reveal("00.1", 1)'), text("100.")]
    assert slide_types(cells) == ["slide", "fragment", "subslide", "fragment", "fragment"]


def test_a_question_does_not_join_a_screen_of_code():
    cells = [text("## 1"), code("first()", "1"), code('predict("00.1")'), code("second()", "2")]
    assert slide_types(cells) == ["slide", "-", "subslide", "subslide"]


def test_a_long_explanation_is_for_the_speaker_unless_it_has_something_to_look_at():
    explained = slide_types([text("## 1"), code("run()", "1"), text(LONG)])
    assert explained == ["slide", "-", "notes"]
    assert slide_types([text("## 1"), code("run()", "1"), text(f"{LONG}\n\n| a | b |\n|---|---|\n")])[-1] == "subslide"


def test_what_only_imports_or_prepares_is_not_shown():
    cells = [
        text("# 00"),
        code("import torch\n\nbatch = 1"),
        text("## 1"),
        code("import time"),
        code("import os\nos.x = 1"),
    ]
    assert slide_types(cells) == ["slide", "skip", "slide", "skip", "-"]


def test_what_ends_in_a_colon_goes_with_what_it_announces():
    assert slide_types([text("## 1"), code("run()", "1"), text("And now:"), code("more()", "2")])[2:] == [
        "subslide",
        "-",
    ]
    assert slide_types([text("## 1"), code("run()", "1"), text("So it is."), code("more()", "2")])[2:] == [
        "fragment",
        "-",
    ]


def test_the_outline_has_all_minutes_and_predictions():
    lesson = outlines()["06"]
    assert lesson.minutes == 87
    assert lesson.sections[0].heading == "1 · The bubble"
    assert [number for section in lesson.sections for number in section.asked] == [f"06.{n}" for n in range(1, 7)]
