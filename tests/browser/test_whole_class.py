"""A whole class: `course class`, its instructor's page, and three learners' notebooks in JupyterLabs of their own."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from course_lib.checks import predictions
from tests.browser.lab import NOTEBOOK, OF_TESTS, SEEN, Lab, Page, axe, free_port, server, wait
from tests.classroom.serving import Served, class_in_a_process, end
from tests.conftest import PATIENCE

pytestmark = pytest.mark.slow

NAMES = ("Ada", "Grace", "<b>Edsger</b>")
NOTEBOOK_OF_EXERCISES = "exercises/00_start_here.ipynb"
CLASS = f"{NOTEBOOK} .course-class"
QUESTION = predictions()["06.2"]
WRONG = "def pass_on(number):\n    return number"
MISTAKE = "This is the rank's own number"
# When a text is first seen, by the machine's clock, in milliseconds: all pages are on one machine.
NOTE_WHEN_SEEN = """([selector, text]) => {
  const look = () => [...document.querySelectorAll(selector)].some(each => each.textContent.includes(text));
  const note = () => { if (!window.firstSeen && look()) window.firstSeen = Date.now(); };
  new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
SLOWEST = 30  # seconds, on a machine on which others work; on a quiet one it is a fraction of a second


@contextlib.contextmanager
def lab_in_class(folder: Path, served: Served, name: str) -> Iterator[Lab]:
    """`course lab --class`, on a desk of its own."""
    folder.mkdir()
    environment = {key: value for key, value in os.environ.items() if key not in OF_TESTS}
    words = ["course_lib", "lab", "--no-browser", "--port", str(free_port()), "--desk", str(folder / "desk")]
    words += ["--class", served.url, "--code", served.code, "--name", name]
    with server(words, folder, {**environment, "HOME": str(folder)}) as (process, address):
        yield Lab(process, folder / "desk", address, folder)


@contextlib.contextmanager
def notebooks_of(learners: list[Lab], chromium: Any) -> Iterator[list[Page]]:
    """Each learner's window, with the exercises in front and the class above them."""
    with contextlib.ExitStack() as windows:
        pages = []
        for lab in learners:
            context = chromium.new_context(viewport={"width": 1280, "height": 800})
            windows.callback(context.close)
            pages.append(Page(lab, context.new_page()))
            pages[-1].open(NOTEBOOK_OF_EXERCISES)
            pages[-1].browser.locator(CLASS).get_by_text(": connected").wait_for()
        yield pages


@contextlib.contextmanager
def instructor(chromium: Any, served: Served) -> Iterator[Any]:
    """The instructor's page, opened by the address that was printed."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    page.goto(f"{served.url}/?token={served.token}")
    yield page
    context.close()


def test_three_learners_are_asked_checked_and_survive_the_servers_death(chromium, tmp_path):
    record, port = tmp_path / "class.db", free_port()
    with contextlib.ExitStack() as running:
        held = running.enter_context(class_in_a_process(record, port=port))
        labs = [
            running.enter_context(lab_in_class(tmp_path / f"learner_{place}", held, name))
            for place, name in enumerate(NAMES)
        ]
        learners = running.enter_context(notebooks_of(labs, chromium))
        page = running.enter_context(instructor(chromium, held))
        wait(lambda: page.locator("#here").text_content() == "3")

        _ask_and_reveal(page, learners)
        print(f"the bar moved {_fail_a_check(page, learners[0]):.2f} s after the learner was told")

        end(held)
        page.get_by_text("Not connected to the class").wait_for()
        stuck = learners[2].browser.locator(CLASS).get_by_role("button", name="I am stuck")
        learners[2].browser.locator(CLASS).get_by_text("not connected").wait_for()
        stuck.click()
        running.enter_context(class_in_a_process(record, port=port))
        _nothing_is_lost(page, learners)


def _ask_and_reveal(page: Any, learners: list[Page]) -> None:
    """Answered three ways; who has answered sees what the others believe only when it is revealed."""
    page.locator("#lessons button").filter(has_text=re.compile("^06")).click()
    page.locator("#questions").get_by_label("Ask: 06.2", exact=True).click()
    for learner, letter in zip(learners, "abc", strict=True):
        learner.browser.locator(CLASS).get_by_role("button", name=f"{letter}) ").click()
    wait(lambda: _counts(page) == ["1", "1", "1", "0"])
    assert not any(QUESTION.choices[0].believes in learner.browser.content() for learner in learners)
    _look(page, "whole_class_asked")
    page.get_by_label("Reveal: 06.2").first.click()
    for learner in learners:
        learner.browser.locator(CLASS).get_by_text(QUESTION.choices[0].believes).wait_for()
    learners[1].screenshot("whole_class_learner")


def _fail_a_check(page: Any, learner: Page) -> float:
    """Seconds from a learner's being told of a mistake to the bar on the instructor's page."""
    page.locator("#tab-exercises").click()
    page.locator("#lessons button").filter(has_text=re.compile("^00")).click()
    page.evaluate(NOTE_WHEN_SEEN, [".mistakes", MISTAKE])
    learner.browser.evaluate(NOTE_WHEN_SEEN, [".jp-OutputArea-output", MISTAKE])
    learner.run(learner.code_cell("from course_lib.checks"))
    learner.write(learner.code_cell("def pass_on"), WRONG)
    learner.run(learner.code_cell("def pass_on"))
    assert MISTAKE in learner.run(learner.code_cell('check("00.1"'))
    page.locator(".mistakes").get_by_text(MISTAKE).wait_for()
    card = page.locator(".exercise").filter(has_text="00.1")
    assert card.locator(".numbers").text_content() == "0 passed, 1 trying, of 3 learners"
    _look(page, "whole_class_mistake")
    told, moved = (each.evaluate("window.firstSeen") for each in (learner.browser, page))
    assert moved - told < SLOWEST * 1000
    return (moved - told) / 1000


def _nothing_is_lost(page: Any, learners: list[Page]) -> None:
    """All have come back by themselves, with what was before and what was pressed in between."""
    page.get_by_text("Not connected to the class").wait_for(state="hidden")
    wait(lambda: page.locator("#here").text_content() == "3")
    assert _counts(page) == ["1", "1", "1", "0"]
    assert MISTAKE in (page.locator(".mistakes").first.text_content() or "")
    wait(lambda: page.locator(".hands .name").all_text_contents() == [NAMES[2]])
    for learner in learners:
        learner.browser.locator(CLASS).get_by_text(": connected").wait_for()
    learners[2].browser.get_by_role("button", name="I am stuck (#1 in line)").wait_for()
    _look(page, "whole_class_after_the_kill")
    assert axe(page, "html") == []


def _counts(page: Any) -> list[str]:
    return [text.partition(" ")[0] for text in page.locator("#asked .before .count").all_text_contents()]


def _look(page: Any, name: str) -> None:
    SEEN.mkdir(exist_ok=True)
    page.screenshot(path=SEEN / f"{name}.png")
