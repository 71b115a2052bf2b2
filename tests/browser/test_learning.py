"""What a learner does with a lesson: predicts, waits, interrupts, is told what is wrong, and comes back another day."""

from __future__ import annotations

import json

import pytest

from tests.browser.lab import NOTEBOOK, wait
from tests.browser.widgets import write_notebook

pytestmark = pytest.mark.slow

LESSON = "notebooks/00_start_here.ipynb"
OUTPUTS = f"{NOTEBOOK} .jp-OutputArea-output"
IMPORTS = "import time\nimport torch.distributed as dist\nfrom course_lib import launch"
WAITING = """
def one_comes_late():
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(1000)

launch(one_comes_late, ranks=2)
"""


class Lesson:
    """Lesson 00, and its cells by their ids."""

    def __init__(self, page) -> None:
        self.page = page
        page.open(LESSON)
        cells = json.loads((page.lab.desk / LESSON).read_text())["cells"]
        self.ids = [cell["id"] for cell in cells if cell["cell_type"] == "code"]
        self.run(self.ids[0])

    def cell(self, name: str):
        return self.page.nth(self.ids.index(name))

    def run(self, name: str) -> str:
        return self.page.run(self.cell(name))

    def run_until(self, first: str, last: str) -> str:
        """All cells behind the first, up to the last, whose outputs are returned."""
        for place in range(self.ids.index(first) + 1, self.ids.index(last)):
            self.page.run(self.page.nth(place))
        return self.run(last)

    def predictions(self) -> dict:
        return json.loads((self.page.lab.desk / "progress.json").read_text())["predictions"]


@pytest.fixture
def lesson(page) -> Lesson:
    (page.lab.desk / "progress.json").unlink(missing_ok=True)
    return Lesson(page)


def test_a_choice_is_made_with_the_keyboard_and_its_misconception_named(page, lesson):
    asked = lesson.run("predict-00-1")
    assert "Predict 00.1" in asked
    assert "a) 106" in asked
    cell = lesson.cell("predict-00-1")
    buttons = cell.get_by_role("button")
    assert [one.text_content()[:6] for one in buttons.all()[:3]] == ["a) 106", "b) 103", "c) 100"]
    assert cell.locator("ul.course-plain").is_hidden()  # the same texts, once more
    assert not lesson.cell("reveal-00-1").is_visible()
    assert page.axe(OUTPUTS) == []
    page.screenshot("prediction_asked")
    buttons.nth(0).focus()
    page.browser.keyboard.press("Enter")
    cell.get_by_text("You said").wait_for()
    assert "106" in page.shown(cell)
    wait(lambda: cell.get_by_role("button").count() == 0)
    wait(lesson.cell("reveal-00-1").is_visible)
    told = lesson.run_until("predict-00-1", "reveal-00-1")
    assert "not as you said" in told
    assert "Ranks share memory" in told
    page.screenshot("prediction_answered")
    assert page.axe(OUTPUTS) == []
    page.in_the_dark()
    assert page.axe(OUTPUTS) == []
    page.screenshot("prediction_answered_dark")
    assert lesson.predictions()["00.1"] == {"said": "a", "right": False}


def test_a_number_is_typed(page, lesson):
    lesson.run_until(lesson.ids[0], "predict-00-2")
    cell = lesson.cell("predict-00-2")
    field = cell.get_by_role("textbox").last
    field.fill("many")
    cell.get_by_role("button", name="Submit").click()
    cell.get_by_text("a number, please").wait_for()
    field.fill("12/2")
    page.browser.keyboard.press("Enter")
    cell.get_by_text("You said").wait_for()
    assert "as you said" in lesson.run_until("predict-00-2", "reveal-00-2")
    assert lesson.predictions()["00.2"] == {"said": 6.0, "right": True}


def test_whoever_does_not_predict_is_not_stopped_and_reads_what_came_out(page, lesson):
    lesson.run("predict-00-1")
    told = lesson.run_until("predict-00-1", "reveal-00-1")
    assert "Result: 100" in told
    assert "you said" not in told.lower()
    assert lesson.cell("predict-00-1").get_by_role("button").count() == 0
    assert lesson.predictions()["00.1"] == {"skipped": True}


def test_another_day_nothing_is_missing_from_the_page(page, lesson):
    """Widgets end with their kernel; what is stored of them is not an error."""
    lesson.run("predict-00-1")
    page.run(page.code_cell("explore_all_reduce"))
    page.browser.wait_for_selector(".course-widget svg")
    assert page.browser.locator(".course-still").is_visible() is False
    page.saved(LESSON)
    page.browser.goto("about:blank")
    page.lab.tidy()
    page.open(LESSON)
    for words, name in (('predict("00.1")', "prediction"), ("explore_all_reduce", "widget")):
        cell = page.code_cell(words)
        cell.scroll_into_view_if_needed()
        page.screenshot(f"another_day_{name}")
        said = cell.locator(".jp-OutputArea").inner_text()
        assert "Error" not in said
        assert "Loading" not in said
        assert "Predict 00.1" in said or cell.locator(".course-still img").is_visible()


def test_a_report_explains_links_and_helps(page, lab):
    page.open("exercises/00_start_here.ipynb")
    page.run(page.code_cell("from course_lib"))
    answer, check = page.code_cell("NotImplementedError", 0), page.code_cell('check("00.1"')
    page.write(answer, "def pass_on(*arguments):\n    return None")
    page.run(page.code_cell("return None"))
    said = page.run(check)
    assert "The smallest case that fails" in said
    assert "0.0" not in said
    assert page.axe(OUTPUTS) == []
    page.screenshot("report_failed")
    check.get_by_role("button", name="Hint").focus()
    page.browser.keyboard.press("Enter")
    check.get_by_text("Hint 1 of").wait_for()
    check.get_by_role("button", name="Our answer").click()
    check.get_by_text("Our answer to 00.1").wait_for()
    colors = check.locator(".highlight span").evaluate_all("all => all.map(one => getComputedStyle(one).color)")
    assert len(set(colors)) > 2
    assert page.axe(OUTPUTS) == []
    page.screenshot("report_helped")
    page.in_the_dark()
    assert page.axe(OUTPUTS) == []
    page.screenshot("report_helped_dark")
    check.get_by_role("link", name="3 · A message").click()
    page.browser.wait_for_selector(".lm-TabBar-tab.lm-mod-current[title*='notebooks/00_start_here.ipynb']")
    heading = page.browser.locator(f"{NOTEBOOK} h2", has_text="3 · A message")
    wait(lambda: heading.count() and on_screen(heading))
    page.screenshot("report_link")


def on_screen(locator) -> bool:
    return locator.evaluate("e => { const r = e.getBoundingClientRect(); return r.top > 0 && r.bottom < innerHeight; }")


def test_a_launch_that_is_quiet_says_who_waits_and_an_interrupt_shows_the_table(page, lab):
    write_notebook(lab.desk / "notebooks" / "stuck.ipynb", IMPORTS, WAITING, "print('and on')")
    page.open("notebooks/stuck.ipynb")
    page.run(page.nth(0))
    cell = page.nth(1)
    page.start(cell)
    status = cell.get_by_role("status")
    wait(lambda: status.count() and "barrier" in (status.first.text_content() or ""))
    live = status.first.text_content()
    assert "rank 1: running" in live
    page.screenshot("waiting")
    assert page.axe(OUTPUTS) == []
    page.menu("Kernel", "Interrupt Kernel")
    wait(lambda: "[*]" not in page.prompts()[1])
    said = page.shown(cell)
    page.screenshot("interrupted")
    assert live not in said
    for words in ("rank 0", "rank 1", "barrier", "sleep", "interrupted"):
        assert words in said
    for words in ("course_lib/", "torch/", "site-packages", "multiprocessing"):
        assert words not in said
    assert "and on" in page.run(page.nth(2))


def test_the_first_launch_interrupted_shows_no_frame_of_ours(page, lab):
    write_notebook(lab.desk / "notebooks" / "first.ipynb", IMPORTS, WAITING)
    page.open("notebooks/first.ipynb")
    page.run(page.nth(0))
    page.start(page.nth(1))
    wait(lambda: page.status() == "busy")
    page.menu("Kernel", "Interrupt Kernel")
    wait(lambda: "[*]" not in page.prompts()[1])
    said = page.shown(page.nth(1))
    assert "nterrupt" in said
    page.screenshot("first_interrupted")
    assert "course_lib/" not in said
    assert "torch/" not in said
