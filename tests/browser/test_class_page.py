"""The instructor's page and the projector in a real browser, in front of learners who have no notebooks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from course_lib.checks.catalog import predictions
from tests.browser.classroom import Learner
from tests.browser.lab import axe, picture, wait, window
from tests.classroom.serving import Served, class_in_a_process

pytestmark = pytest.mark.slow

NAMES = ("Ada", "<img src=x onerror=alert(1)>", "Grace")
QUESTION = predictions()["06.2"]
MISTAKE = "`contiguous` is missing: <b>bold</b>"


@pytest.fixture(scope="module")
def held(tmp_path_factory: Any) -> Iterator[Served]:
    """A class that goes on from test to test."""
    with class_in_a_process(tmp_path_factory.mktemp("class") / "class.db") as held:
        yield held


@pytest.fixture(scope="module")
def learners(held: Served) -> list[Learner]:
    """Three, who have joined."""
    return [Learner(held, name) for name in NAMES]


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """A context of its own: its pages share a login."""
    with window(chromium, viewport={"width": 1280, "height": 800}) as page:
        yield page.context


@pytest.fixture
def page(browser: Any, held: Served) -> Any:
    """The instructor's, logged in, as the address that was printed opens it."""
    (page,) = browser.pages
    page.goto(f"{held.url}/?token={held.token}")
    page.locator("#code").filter(has_text=held.code).wait_for()
    return page


def ask(page: Any, number: str) -> None:
    """Choose the lesson, and press the question's button."""
    page.locator("#lessons button").filter(has_text=re.compile(rf"^{number[:2]}")).click()
    page.locator("#questions").get_by_label(f"Ask: {number}", exact=True).click()


def counts(place: Any, round_: str = "before") -> list[str]:
    """What the bars of a question say, one for each choice."""
    return [text.partition(" ")[0] for text in place.locator(f".{round_} .count").all_text_contents()]


def test_a_question_is_asked_answered_three_ways_and_revealed_to_the_room(held, learners, page, browser):
    ask(page, "06.2")
    assert [learner.asked()["number"] for learner in learners] == ["06.2"] * 3
    projector = browser.new_page()
    projector.goto(f"{held.url}/projector")
    wait(lambda: projector.locator("#progress").text_content() == "0 of 3 answered")
    for learner, said in zip(learners, "abc", strict=True):
        assert learner.answer(said) == ""
    wait(lambda: projector.locator("#progress").text_content() == "3 of 3 answered")
    assert projector.locator(".moving").count() == 0
    assert not any(choice.believes in projector.content() for choice in QUESTION.choices if choice.believes)
    wait(lambda: counts(page.locator("#asked")) == ["1", "1", "1", "0"])
    page.screenshot(path=picture("class_asked"))

    page.get_by_label("Reveal: 06.2").first.click()
    projector.get_by_text(QUESTION.choices[0].believes).wait_for()
    shown = projector.locator(".bars .count").all_text_contents()
    assert shown == ["1 · 33%", "1 · 33%", "1 · 33%", "0 · 0%"]
    right = projector.locator(".is-right").text_content()
    assert "✓ right" in right
    assert QUESTION.right.says in right
    assert not any(name in projector.content() for name in NAMES)
    assert learners[0].answer("b") == "this question is closed: it takes no more answers"

    page.get_by_label("Ask again: 06.2").first.click()
    assert learners[0].asked("after")["said"] is None
    learners[0].answer("b")
    wait(lambda: counts(page.locator("#asked"), "after") == ["0", "1", "0", "0"])
    assert counts(page.locator("#asked")) == ["1", "1", "1", "0"]


def test_a_failed_check_moves_its_bar_and_names_the_mistake(learners, page):
    page.locator("#tab-exercises").click()
    page.locator("#lessons button").filter(has_text=re.compile("^02")).click()
    said = time.monotonic()
    learners[0].say("checked", number="02.1", passed=False, points=0, part="", mistake=MISTAKE)
    page.locator(".mistakes").get_by_text("contiguous is missing: <b>bold</b>").wait_for()
    print(f"the bar moved {time.monotonic() - said:.2f} s after the check")
    card = page.locator(".exercise").filter(has_text="02.1")
    assert card.locator(".numbers").text_content() == "0 passed, 1 trying, of 3 learners"
    learners[1].say("checked", number="02.1", passed=True, points=3, part="", mistake="")
    card.get_by_text("1 passed, 1 trying, of 3 learners").wait_for()
    card.locator("summary").click()
    assert NAMES[1] in card.locator("p.passed").text_content()


def test_hands_stand_in_order_with_the_cell_as_text_and_go_when_done(learners, page):
    source = "<script>alert(1)</script>\nx = 1"
    for learner in (learners[1], learners[0]):
        learner.say("stuck", on=True, lesson="06", section="1 · The bubble")
    learners[1].say("showed", source=source, lesson="06", section="1 · The bubble")
    page.locator(".hands pre").get_by_text("x = 1").wait_for()
    assert page.locator(".hands .name").all_text_contents() == [NAMES[1], NAMES[0]]
    assert page.locator(".hands pre").first.text_content() == source
    assert learners[0].hear(lambda state: state["line"]) == 2
    page.get_by_label(f"Done: {NAMES[1]}").click()
    wait(lambda: page.locator(".hands .name").all_text_contents() == [NAMES[0]])
    page.get_by_label(f"Done: {NAMES[0]}").click()
    page.get_by_text("Nobody is stuck.").wait_for()


def test_too_fast_is_said_once_each_and_cleared(learners, page):
    for learner in (learners[0], learners[0], learners[1]):
        learner.say("slower")
    page.get_by_text("Slower, please: 2").wait_for()
    page.locator("#faster").click()
    page.locator("#slower").wait_for(state="hidden")


def test_the_map_says_how_many_are_where(learners, page):
    for learner in learners[:2]:
        learner.say("reached", lesson="06", section="1 · The bubble")
    page.locator("#lessons").get_by_text("06 · 2 here").wait_for()
    page.locator("#tab-questions").focus()
    page.keyboard.press("ArrowLeft")  # round to the last one
    tile = page.locator("#sections .tile").filter(has_text="1 · The bubble")
    assert tile.text_content() == "1 · The bubble2 here, 2 visited"
    assert page.locator("#sections .lesson").count() == 1


def test_everybody_can_use_the_page(learners, page):
    ask(page, "06.3")
    learners[1].say("stuck", on=True, lesson="06", section="1 · The bubble")
    page.locator(".hands li").wait_for()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for tab in ("questions", "plan", "exercises", "sections"):
            page.locator(f"#tab-{tab}").click()
            assert axe(page, "html") == []
    for width in (1920, 1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=picture(f"class_{width}"))
