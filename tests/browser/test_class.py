"""One learner of a class, in the lab: asked at the top of the notebook, stuck, shown; and what the class sees of it."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from course_lib.runtime.machine import free_port
from tests.browser.lab import NOTEBOOK, Lab, started_lab, wait
from tests.classroom.serving import Served, class_in_a_process, end

pytestmark = pytest.mark.slow

LESSON = "notebooks/00_start_here.ipynb"
CLASS = f"{NOTEBOOK} .course-class"
SECRET_WORDS = "[...performance.getEntries()].map(e => e.name).join() + document.documentElement.outerHTML"


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """In a thread of its own: playwright has a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


class Room:
    """A class, and what its instructor does and sees."""

    def __init__(self, folder) -> None:
        self.record, self.port = folder / "class.db", free_port()
        self._holding: Any = None
        self.start()

    def start(self) -> None:
        self._holding = class_in_a_process(self.record, "--title", "LSTMs on a Tuesday", port=self.port)
        self.served: Served = self._holding.__enter__()
        _run(self.served.log_in())

    def stop(self) -> None:
        self._holding.__exit__(None, None, None)

    def kill(self) -> None:
        end(self.served)
        self.stop()

    def act(self, action: str, **details: Any) -> dict[str, Any]:
        return _run(self.served.act(action, **details))

    def ask(self, number: str) -> str:
        """Ask all of them; returns the id of the asking."""
        self.act("ask", number=number, round="before")
        return self.question(number)["asked"]["asked"]

    def sees(self) -> dict[str, Any]:
        return _run(self.served.snapshot())

    def question(self, number: str) -> dict[str, Any]:
        return next(each for each in self.sees()["questions"] if each["number"] == number)

    def lesson(self, number: str) -> dict[str, int]:
        """Of each section, how many are there."""
        lesson = next(each for each in self.sees()["lessons"] if each["number"] == number)
        return {section["heading"]: section["here"] for section in lesson["sections"] if section["here"]}


@pytest.fixture(scope="module")
def room(tmp_path_factory) -> Iterator[Room]:
    room = Room(tmp_path_factory.mktemp("class"))
    yield room
    room.stop()


@pytest.fixture(scope="module")
def lab(tmp_path_factory, room) -> Iterator[Lab]:
    """`course lab --class`."""
    folder = tmp_path_factory.mktemp("lab")
    with started_lab(folder, "--class", room.served.url, "--code", room.served.code, "--name", "Ada") as lab:
        said = (folder / "lab.log").read_text()
        assert "You are in LSTMs on a Tuesday. Sent to the class: predictions" in said
        assert "Never your code" in said
        yield lab


@pytest.fixture
def page(page, room):
    """The first lesson, with the class above it."""
    page.open(LESSON)
    page.browser.get_by_text("LSTMs on a Tuesday: connected").wait_for()
    return page


def secret_of(lab: Lab) -> str:
    file = lab.desk / ".course" / "class.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return json.loads(file.read_text())["secret"]


def test_a_question_is_answered_by_keyboard_and_its_outcome_shown(page, room):
    asked = room.ask("00.1")
    above = page.browser.locator(CLASS)
    above.get_by_role("heading", name="Question for the class: 00.1").wait_for()
    page.screenshot("class_asked")
    assert page.axe(CLASS) == []
    assert "Ranks share memory" not in page.browser.content()
    above.get_by_role("button", name="a) 106").focus()
    page.browser.keyboard.press("Enter")
    above.locator("button[aria-pressed=true]", has_text="106").wait_for()
    assert page.browser.evaluate("document.activeElement.dataset.name") == "choice-a"
    wait(lambda: room.question("00.1")["before"]["counts"] == [1, 0, 0])
    room.act("close", asked=asked)
    above.get_by_text("The question is closed").wait_for()
    room.act("reveal", asked=asked)
    above.get_by_text("Ranks share memory").wait_for()
    assert "(yours)" in above.locator("li", has_text="106").first.text_content()
    page.screenshot("class_revealed")
    assert page.axe(CLASS) == []
    page.in_the_dark()
    page.screenshot("class_revealed_dark")
    assert page.axe(CLASS) == []
    for width, height in ((1920, 1080), (600, 800)):
        page.browser.set_viewport_size({"width": width, "height": height})
        page.screenshot(f"class_revealed_{width}")
    above.get_by_role("button", name="Put this away").click()
    above.get_by_role("heading", name="Question for the class").wait_for(state="hidden")


def test_a_number_is_typed_and_what_is_none_is_not_taken(page, room):
    room.ask("00.2")
    above = page.browser.locator(CLASS)
    field = above.get_by_role("textbox", name="Your answer")
    field.fill("many")
    page.browser.keyboard.press("Enter")
    above.get_by_text("A number, please").wait_for()
    field.fill("6")
    page.browser.keyboard.press("Enter")
    wait(lambda: sum(room.question("00.2")["before"]["counts"]) == 1)
    page.screenshot("class_typed")
    assert page.axe(CLASS) == []


def test_a_hand_is_raised_and_a_cell_shown_only_after_a_yes(page, room):
    above = page.browser.locator(CLASS)
    above.get_by_role("button", name="I am stuck").click()
    above.get_by_role("button", name="I am stuck (#1 in line)").wait_for()
    (hand,) = room.sees()["hands"]
    assert (hand["name"], hand["lesson"], hand["source"]) == ("Ada", "00", None)
    page.code_cell("from course_lib").locator(".cm-content").click()
    above.get_by_role("button", name="Show my cell").click()
    dialog = page.browser.locator(".jp-Dialog")
    dialog.get_by_text("This sends the source of this cell to the instructor").wait_for()
    page.screenshot("class_show_my_cell")
    dialog.get_by_role("button", name="Cancel").click()
    above.get_by_role("button", name="Show my cell").click()
    dialog.get_by_role("button", name="Show it").click()
    source = wait(lambda: room.sees()["hands"][0]["source"])
    assert "from course_lib" in source
    above.get_by_role("button", name="I am stuck (#1 in line)").click()
    wait(lambda: room.sees()["hands"] == [])
    above.get_by_role("button", name="Slower, please").click()
    wait(lambda: room.sees()["slower"] == 1)


def test_the_class_sees_which_section_is_read(page, room):
    heading = page.browser.locator(f"{NOTEBOOK} h2", has_text="3 · A message")
    heading.evaluate("heading => heading.scrollIntoView()")
    wait(lambda: "3 · A message" in " ".join(room.lesson("00")))


def test_the_desk_follows_the_class_to_a_section_only_while_its_learner_lets_it(page, room):
    above = page.browser.locator(CLASS)
    above.get_by_role("button", name="Done").click()
    wait(lambda: room.sees()["done"] == 1)
    room.act("go", lesson="00", section="6 · The library's way")
    above.get_by_role("button", name="The class is at 00: 6 · The library's way").wait_for()
    page.browser.locator(f"{NOTEBOOK} .jp-mod-active h2", has_text="6 · The library's way").wait_for()
    page.screenshot("class_called")
    assert page.axe(CLASS) == []
    above.get_by_label("take me there automatically").uncheck()
    room.act("go", lesson="00", section="3 · A message")
    call = above.get_by_role("button", name="The class is at 00: 3 · A message")
    call.wait_for()
    assert page.browser.locator(f"{NOTEBOOK} .jp-mod-active h2", has_text="3 · A message").count() == 0
    call.click()
    page.browser.locator(f"{NOTEBOOK} .jp-mod-active h2", has_text="3 · A message").wait_for()


def test_a_prediction_and_a_check_reach_the_class_and_the_page_never_holds_the_secret(page, room, lab):
    page.run(page.code_cell("from course_lib"))
    cell = page.code_cell('predict("00.1")')
    page.run(cell)
    cell.get_by_role("button", name="b) ").click()
    cell.get_by_text("You said").wait_for()
    wait(lambda: room.question("00.1")["before"]["counts"] == [0, 1, 0])
    page.write(page.code_cell("who_am_i"), "from course_lib.checks import check\ncheck('00.1', lambda number: number)")
    page.run(page.code_cell("check('00.1'"))
    wait(lambda: next(each for each in room.sees()["exercises"] if each["number"] == "00.1")["trying"] == ["Ada"])
    assert secret_of(lab) not in page.browser.evaluate(SECRET_WORDS)


def test_after_the_class_was_killed_the_page_comes_back_by_itself_and_nothing_is_lost(page, room):
    room.kill()
    above = page.browser.locator(CLASS)
    above.get_by_text("not connected; what you do is kept and sent later").wait_for()
    page.screenshot("class_away")
    assert page.axe(CLASS) == []
    above.get_by_role("button", name="I am stuck").click()
    room.start()
    above.get_by_text("LSTMs on a Tuesday: connected").wait_for()
    above.get_by_role("button", name="I am stuck (#1 in line)").wait_for()
    assert [hand["name"] for hand in room.sees()["hands"]] == ["Ada"]
