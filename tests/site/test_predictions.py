"""Predictions on the site: the result is folded until there is an answer, which stays in the reader's browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from course_lib.runtime.course_files import read, source
from tests.browser.lab import axe, wait
from tests.conftest import PATIENCE
from tests.site.conftest import ROOT

sys.path.append(str(ROOT / "docs" / "_extensions"))
predictions, lesson_pages = pytest.importorskip("predictions"), pytest.importorskip("lesson_pages")

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LESSON = "lessons/00_start_here.html"
CHOICE, NUMBER = "00.1", "00.3"  # the right ones are c and 1.5


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_every_result_is_folded_and_no_heading_is(lesson):
    cells = [(cell["cell_type"], source(cell)) for cell in predictions.with_folds(read(lesson)["cells"])]
    folded: list[str] = []  # the numbers of the predictions whose folds are open; "" for a question in the text
    for kind, text in cells:
        opened = re.match(r'<details class="outcome"(?: data-number="([\d.]+)")?>', text)
        if opened:
            folded.append(opened.group(1) or "")
        elif kind == "markdown" and text.startswith("</details>"):
            assert folded
            assert text == "</details>" * (1 if folded[-1] == "" else len(folded))
            folded = folded[:-1] if folded[-1] == "" else []
        revealed = re.match(r'reveal\("([\d.]+)"', text)
        assert not revealed or revealed.group(1) in folded, text
        assert not (folded and kind == "markdown" and re.search(r"^#+ ", text, re.MULTILINE)), text
    assert folded == []


def test_a_text_with_a_heading_in_its_middle_is_folded_down_to_it():
    cells = [
        {"cell_type": "code", "source": 'predict("00.1")', "outputs": []},
        {"cell_type": "markdown", "source": "It is 100.\n\n### Printing\n\nNow print."},
    ]
    _, fold, folded, end, rest = (cell["source"] for cell in predictions.with_folds(cells))
    assert fold.startswith("<details")
    assert (folded.strip(), end, rest) == ("It is 100.", "</details>", "### Printing\n\nNow print.")


def test_a_widget_is_not_folded_though_the_text_before_it_asks():
    widget = {"data": {"text/html": '<div class="course-still"></div>'}}
    cells = [
        {"cell_type": "markdown", "source": "Step through the ring. *Predict* before each round."},
        {"cell_type": "code", "id": "a", "source": "explore_all_reduce(4)", "metadata": {}, "outputs": [widget]},
    ]
    assert predictions.with_folds(cells) == cells


def test_a_question_in_the_middle_of_a_paragraph_folds_what_the_next_cell_shows():
    cells = [
        {"cell_type": "markdown", "source": "What is legal? Before you run the cell, say which are."},
        {"cell_type": "code", "id": "a", "source": "print(1)", "metadata": {}, "outputs": [{"text": "1"}]},
    ]
    assert predictions.SAY in [cell["source"] for cell in predictions.with_folds(cells)]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_every_figure_has_its_own_caption_directly_below_it(lesson):
    cells = lesson_pages.with_captions(read(lesson)["cells"])
    numbers = []
    for before, cell in pairwise(cells):
        found = re.match(r'<div class="caption">\n\n\*?Figure (\d+): ', source(cell))
        if found:
            numbers.append(int(found.group(1)))
            assert "<img " in str(before["outputs"])
        assert not re.match(r"\*Figure", source(cell)), "a caption without a picture"
    assert numbers == list(range(1, len(numbers) + 1))
    drawn = [cell for cell in cells if 'class="drawn"' in str(cell.get("outputs"))]
    assert len(numbers) >= len(drawn)


def test_a_site_is_not_published_without_the_repositorys_address(monkeypatch):
    monkeypatch.delenv("COURSE_REPOSITORY", raising=False)
    words = [sys.executable, ROOT / "docs" / "build.py", "--publish"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "COURSE_REPOSITORY=https://github.com/OWNER/NAME" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def page(chromium, site_address) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(site_address + LESSON)
    yield page
    context.close()


def fold(page: Any, number: str) -> Any:
    return page.locator(f"details.outcome[data-number='{number}']")


def result(page: Any, number: str) -> Any:
    return page.get_by_label(f"Result of prediction {number}", exact=True)


def asked(page: Any, number: str) -> Any:
    return page.get_by_label(f"Prediction {number}", exact=True)


@pytest.mark.slow
def test_a_choice_made_by_keyboard_opens_the_result_and_is_there_another_day(page):
    assert not result(page, CHOICE).is_visible()
    assert asked(page, CHOICE).get_by_role("button").count() == 3
    asked(page, CHOICE).get_by_role("button").first.focus()
    page.keyboard.press("Enter")
    for _ in range(2):
        assert result(page, CHOICE).is_visible()
        assert "✗ not as you said" in result(page, CHOICE).inner_text()
        assert "Ranks share memory" in result(page, CHOICE).inner_text().partition("other answers")[0]
        assert asked(page, CHOICE).get_by_role("button", pressed=True).inner_text().startswith("a) 106")
        assert asked(page, CHOICE).locator("button.is-right").inner_text().startswith("c)")
        assert "What the run shows: c)" in asked(page, CHOICE).get_by_role("status").inner_text()
        assert "You predicted 1 of 5; 1 surprised you." in page.locator(".prediction-score").last.inner_text()
        assert axe(page, "[data-prediction], details.outcome") == []
        page.reload()
    assert not result(page, NUMBER).is_visible()
    page.get_by_role("button", name="Forget my answers").first.click()
    wait(lambda: not result(page, CHOICE).is_visible())


@pytest.mark.slow
def test_a_number_may_be_a_fraction_and_words_are_refused(page):
    field = asked(page, NUMBER).get_by_role("textbox")
    field.fill("many")
    page.keyboard.press("Enter")
    assert "such as 12, 1.5 or 3/2" in asked(page, NUMBER).inner_text()
    assert not result(page, NUMBER).is_visible()
    field.fill("3/2")
    page.keyboard.press("Enter")
    assert "✓ as you said" in result(page, NUMBER).inner_text()


@pytest.mark.slow
def test_a_number_that_no_idea_explains_opens_the_ideas(page):
    asked(page, NUMBER).get_by_role("textbox").fill("98765")
    page.keyboard.press("Enter")
    wait(lambda: result(page, NUMBER).locator("details[open]").count() == 1)
    assert asked(page, NUMBER).locator("strong.is-wrong").inner_text().startswith("✗")


@pytest.mark.slow
def test_a_prediction_is_skipped_by_a_key_and_can_still_be_answered_and_a_search_in_the_page_skips_nothing(page):
    page.evaluate(f"document.querySelector('details[data-number=\"{CHOICE}\"]').open = true")  # as a search does
    wait(lambda: fold(page, CHOICE).locator("p").first.is_visible())
    assert page.evaluate("localStorage['course-predictions']") is None
    page.reload()
    fold(page, CHOICE).locator("summary").first.focus()
    page.keyboard.press("Enter")
    wait(lambda: "You skipped this one" in asked(page, CHOICE).inner_text())
    assert "as you said" not in result(page, CHOICE).inner_text()
    assert json.loads(page.evaluate("localStorage['course-predictions']")) == {CHOICE: {"skipped": True}}
    asked(page, CHOICE).locator("button").first.click()
    wait(lambda: "You said" in result(page, CHOICE).inner_text())
    assert json.loads(page.evaluate("localStorage['course-predictions']"))[CHOICE]["said"] == "a"


@pytest.mark.slow
def test_without_javascript_everything_can_be_read_in_order(chromium, site_address):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(site_address + LESSON)
    assert "a) 106" in asked(page, CHOICE).inner_text()
    assert asked(page, CHOICE).get_by_role("button").count() == 0
    fold(page, CHOICE).locator("summary").first.click()
    assert result(page, CHOICE).is_visible()
    context.close()


@pytest.mark.slow
def test_paper_is_white_and_shows_every_result(page):
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator("details.outcome:not([open])").count() == 0
    assert result(page, CHOICE).is_visible()
    choices = asked(page, CHOICE).locator("li button")
    assert [choice.inner_text()[:2] for choice in choices.all() if choice.is_visible()] == ["a)", "b)", "c)"]
    assert not asked(page, CHOICE).get_by_role("status").is_visible()  # "folded below" is not true of paper
    assert asked(page, NUMBER).get_by_role("textbox").is_visible()  # a line to write on
    assert page.locator(".cell_input").first.evaluate("e => getComputedStyle(e).breakInside") == "avoid"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.emulate_media(media="screen")
    assert not result(page, CHOICE).is_visible()
    assert page.evaluate("localStorage['course-predictions']") is None
