"""Every cell of a lesson has its place on a slide, by rule; no question stands on a screen with its answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from course_lib.authoring.outline import ASKS, asks_question, begins_section, marked, outlines, slide_types
from course_lib.lab.merge import without_outputs
from course_lib.runtime.course_files import source

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


HEAD, TABLE = text("## 1"), text(f"{LONG}\n\n| a | b |\n|---|---|\n")
ASK, REVEAL = code('predict("00.1")'), code('reveal("00.1", 1)')
RUN, MORE = code("run()", "1"), code("more()", "2")


@pytest.mark.parametrize(
    ("cells", "kinds"),
    [
        pytest.param(
            [HEAD, ASK, RUN, REVEAL, text("100.")],
            ["slide", "fragment", "subslide", "fragment", "fragment"],
            id="a question, its run and what explains it come one after another",
        ),
        pytest.param(
            [HEAD, RUN, ASK, MORE],
            ["slide", "-", "subslide", "subslide"],
            id="a question does not join a screen of code",
        ),
        pytest.param([HEAD, RUN, text(LONG)], ["slide", "-", "notes"], id="a long explanation is for the speaker"),
        pytest.param([HEAD, RUN, TABLE], ["slide", "-", "subslide"], id="unless it has something to look at"),
        pytest.param(
            [text("# 00"), code("import torch\n\nbatch = 1"), HEAD, code("import time"), code("import os\nos.x = 1")],
            ["slide", "skip", "slide", "skip", "-"],
            id="what only imports or prepares is not shown",
        ),
        pytest.param(
            [HEAD, RUN, text("And now:"), MORE],
            ["slide", "-", "subslide", "-"],
            id="what ends in a colon goes with what it announces",
        ),
        pytest.param(
            [HEAD, RUN, text("So it is."), MORE], ["slide", "-", "fragment", "-"], id="and what does not, does not"
        ),
    ],
)
def test_a_cell_has_its_place_by_what_it_is(cells, kinds):
    assert slide_types(cells) == kinds


def test_the_outline_has_all_minutes_and_predictions():
    lesson = outlines()["06"]
    assert lesson.minutes == 87
    assert lesson.sections[0].heading == "1 · The bubble"
    assert [number for section in lesson.sections for number in section.asked] == [f"06.{n}" for n in range(1, 7)]
