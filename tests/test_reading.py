"""Lessons can be read by somebody who checks; and what such a reader would catch is caught here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from course_lib.authoring.reading import findings

LESSONS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", LESSONS, ids=[path.stem for path in LESSONS])
def test_a_lesson_can_be_checked_by_its_reader(path):
    found = findings(path)
    assert not found, "\n".join(map(str, found))


def markdown(text: str) -> dict:
    return {"cell_type": "markdown", "id": f"cell-{abs(hash(text))}", "metadata": {}, "source": text}


def code(text: str, *printed: str) -> dict:
    outputs = [{"output_type": "stream", "name": "stdout", "text": line} for line in printed]
    return {"cell_type": "code", "id": f"cell-{abs(hash(text))}", "metadata": {}, "source": text, "outputs": outputs}


FIRST = markdown(
    "# 01 · Middle\n\n**Time**: 5 minutes.\n\n**Before**: [zero](00_first.ipynb). **After**: [two](02_last.ipynb)."
)
SOURCES = markdown(
    "## Where this comes from\n<small>2 minutes</small>\n\n"
    + "".join(f"- [A paper](https://arxiv.org/abs/{n}): what it adds to this.\n" for n in range(3))
)


def section(text: str = "", minutes: int = 3) -> dict:
    return markdown(f"## 1 · A section\n<small>{minutes} minutes</small>\n\n{text}")


def read(folder: Path, *cells: dict, first: dict = FIRST, sources: dict = SOURCES) -> list[str]:
    for name in ("00_first", "01_middle", "02_last"):
        (folder / f"{name}.ipynb").write_text(json.dumps({"cells": [first, *cells, sources]}))
    return [str(found).partition("01_middle, ")[2] for found in findings(folder / "01_middle.ipynb")]


def test_nothing_is_said_of_a_lesson_that_has_it_all(tmp_path):
    cells = (
        section(
            "*Predict* how long it takes. See section 1, or [there](02_last.ipynb), in `course_lib/runtime/trace.py`."
        ),
        code("print(f'loss {a} against {b}: {a < b}')", "loss 0.5 against 0.6: True\n"),
        markdown("It is less."),
        code('predict("01.1")'),
        code("run()", "12 messages\n"),
        code('reveal("01.1", 3)'),
        markdown("Three."),
    )
    assert read(tmp_path, *cells) == []


@pytest.mark.parametrize(
    ("words", "printed", "says"),
    [
        ("'faster:', a > b", ["faster: True\n"], "cell 2: prints only True or False"),
        ("'same to 1e-10:', [a, b]", ["same to ", "1e-10: [True, False]\n"], "cell 2: prints only True or False"),
        ("'loss', 1.5, 'same:', x", ["loss 1.5\n", "same: False\n"], "cell 2, line 2: a verdict without the numbers"),
    ],
)
def test_a_verdict_without_its_numbers_is_found(tmp_path, words, printed, says):
    (found,) = read(tmp_path, section(), code(f"print({words})", *printed))
    assert found.startswith(says)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ((section("*Predict* it."), code("run()")), r"cell 1, line 4: \*Predict\* without an answer"),
        ((section(), code('predict("01.1")'), code("run()"), markdown("Two.")), "cell 2: .* not followed by"),
        ((section(), code('predict("01.1")'), code('reveal("01.1", 2)')), "cell 2: prediction 01.1 has no answer"),
    ],
)
def test_a_question_that_nobody_answers_is_found(tmp_path, cells, says):
    (found,) = read(tmp_path, *cells)
    assert re.match(says, found)


def test_minutes_that_are_missing_or_do_not_add_up_are_found(tmp_path):
    assert read(tmp_path, section(minutes=4)) == ["cell 0: says 5 minutes, and its sections add up to 6"]
    without, wrong = read(tmp_path, markdown("## 1 · A section\n\nAt once."), first=FIRST)[::-1]
    assert without == "cell 1, line 2: '1 · A section' has no <small>N minutes</small> directly under it"
    assert wrong == "cell 0: says 5 minutes, and its sections add up to 2"
    silent = markdown(FIRST["source"].replace("**Time**", "Time"))
    assert read(tmp_path, section(), first=silent) == [
        "cell 0: does not say how long the lesson takes: **Time**: N minutes"
    ]


def test_neighbors_that_are_not_linked_are_found(tmp_path):
    alone = markdown("# 01 · Middle\n\n**Time**: 5 minutes. **After**: [zero](00_first.ipynb)")
    assert read(tmp_path, section(), first=alone) == [
        "cell 0: does not link to the lesson before it: **Before**: [..](00_first.ipynb)",
        "cell 0: **After** links to 00_first.ipynb, not to 02_last.ipynb",
    ]


def test_missing_sources_are_found(tmp_path):
    few = markdown("## Where this comes from\n<small>2 minutes</small>\n\n- [A paper](https://arxiv.org/abs/1)\n")
    count, bare = read(tmp_path, section(), sources=few)
    assert count == "cell 2: 1 sources: a reader wants 3 to 6"
    assert bare.startswith("cell 2: a source without a link, or without what it adds: '[A paper]")
    (other,) = read(tmp_path, section(), sources=markdown("## Recap\n<small>2 minutes</small>"))
    assert other == "cell 2, line 1: the last section is 'Recap', not 'Where this comes from'"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[there](03_none.ipynb)", "leads nowhere: 03_none.ipynb"),
        ("[there](00_first.ipynb#cell-id=none)", "leads nowhere: 00_first.ipynb#cell-id=none"),
        ("It stands in `course_lib/none.py`.", "there is no course_lib/none.py"),
        ("As section 2 shows.", "lesson 01 has no section 2"),
        ("As section 7 of lesson 02 shows.", "lesson 02 has no section 7"),
    ],
)
def test_what_leads_nowhere_is_found(tmp_path, text, says):
    assert read(tmp_path, section(text)) == [f"cell 1, line 4: {says}"]
