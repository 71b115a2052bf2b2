"""The desk in a real browser: a quiet first screen, lessons that run, exercises that answer, a clean clone."""

from __future__ import annotations

import json

import pytest

from course_lib.checks.catalog import exercises
from course_lib.checks.notebooks import answer_cell
from tests.browser.lab import NOTEBOOK, ROOT, is_drawn_for_the_dark, wait

pytestmark = pytest.mark.slow

LESSONS = ("00_start_here", "06_pipeline_parallelism")


@pytest.mark.core
def test_the_first_screen_has_lesson_00_and_its_contents_and_nothing_in_the_way(page):
    page.browser.goto(page.lab.address)
    page.browser.locator(".course-desk-cards li", has_text="11 · Capstone").get_by_text("90 minutes").wait_for()
    assert page.axe(".course-desk-home") == []
    assert not page.browser.locator("#table-of-contents").is_visible()  # a home page has no contents
    page.screenshot("home")
    page.browser.get_by_role("button", name="Start: lesson 00").click()
    page.ready("notebooks/00_start_here.ipynb")
    tabs = page.browser.locator(".lm-DockPanel-tabBar .lm-TabBar-tab")
    assert tabs.all_text_contents() == ["Home", "00_start_here.ipynb"]
    assert tabs.last.evaluate("e => getComputedStyle(e, '::after').content") == '"Lesson 00"'
    contents = page.browser.locator("#table-of-contents")
    contents.get_by_text("1 · A rank").wait_for()
    assert contents.is_visible()
    assert page.browser.locator(".jp-Dialog, .Toastify__toast").count() == 0
    menus = page.browser.locator(".lm-MenuBar-itemLabel").all_text_contents()
    assert menus == ["File", "Edit", "View", "Run", "Kernel", "Tabs", "Settings", "Help"]
    assert page.browser.get_by_text("nbgrader").count() == 0
    page.screenshot("first_screen")


def test_outcomes_are_folded_until_their_cells_run_and_running_all_runs_them(page):
    page.open("notebooks/04_accumulation.ipynb")
    folded = page.browser.locator(f"{NOTEBOOK} .jp-Cell.lm-mod-hidden")
    wait(lambda: folded.count() > 10)
    assert page.browser.locator(f"{NOTEBOOK} .course-desk-fold").count() == 5
    assert not folded.locator("h2").count()
    page.run_all()
    assert page.prompts() == in_order(page)
    assert folded.count() == 0


def test_a_prediction_keeps_the_keyboard_and_its_answer_leads_on(page):
    page.open("notebooks/00_start_here.ipynb")
    page.run(page.nth(0))
    asks = page.code_cell('predict("00.1")')
    asks.locator(".cm-content").click()
    page.browser.keyboard.press("Shift+Enter")
    choice = asks.get_by_role("button", name="Skip: show it")
    answer = asks.locator(".course-choices button, button.jupyter-button").first
    answer.wait_for()
    wait(lambda: "jp-mod-active" in asks.get_attribute("class"))
    assert asks.evaluate(IN_VIEW)
    page.browser.keyboard.press("Shift+Enter")  # again, without an answer: on to what is not folded
    wait(lambda: "jp-mod-active" not in asks.get_attribute("class"))
    assert choice.is_visible()
    answer.click()
    choice.wait_for(state="detached")
    after = page.browser.locator(f"{NOTEBOOK} .jp-Cell.jp-mod-active")
    wait(lambda: "jp-mod-active" not in asks.get_attribute("class"))
    assert after.is_visible()
    before = page.prompts()
    page.browser.keyboard.press("Shift+Enter")
    page.browser.keyboard.press("Shift+Enter")  # the first one may have been text
    wait(lambda: page.prompts() != before)


IN_VIEW = "e => e.getBoundingClientRect().top < innerHeight && e.getBoundingClientRect().bottom > 0"


def test_a_new_kernel_offers_to_run_what_is_above(page):
    page.open("notebooks/00_start_here.ipynb")
    cell = page.code_cell("def who_am_i")
    assert "NameError" in page.run(cell)
    page.run(page.code_cell('predict("00.1")'))
    asks = page.code_cell('predict("00.1")')
    offer = asks.get_by_role("button", name="Run everything above")
    wait(lambda: offer.evaluate(IN_VIEW))
    fold = asks.locator(".course-desk-fold")
    assert offer.bounding_box()["y"] < fold.bounding_box()["y"]
    assert fold.inner_text().startswith("Run the cell above, then answer")
    cell.get_by_role("button", name="Run everything above").click()
    wait(lambda: "rank 3 of 4" in page.shown(cell))
    assert cell.locator(".course-desk-new").count() == 0
    wait(lambda: "jp-mod-active" in cell.get_attribute("class"))
    assert cell.evaluate(IN_VIEW)


def test_a_lessons_end_is_no_new_cell_and_its_next_step_takes_the_keyboard_along_and_runs_the_imports(page):
    page.open("notebooks/00_start_here.ipynb")
    page.cell("Where this comes from").click(position={"x": 200, "y": 20})
    page.browser.keyboard.press("Shift+Enter")
    button = page.browser.locator(f"{NOTEBOOK} .course-desk-end").get_by_role("button").first
    wait(lambda: button.evaluate("e => document.activeElement === e"))
    wait(lambda: button.evaluate(IN_VIEW))
    assert "Where this comes from" in page.browser.locator(f"{NOTEBOOK} .jp-Cell").last.inner_text()
    ways = page.browser.locator(f"{NOTEBOOK} .course-desk-end").get_by_role("button").all_inner_texts()
    assert [way.partition(",")[0] for way in ways if way.startswith("exercise")] == ["exercise 00.1"]
    page.browser.keyboard.press("Enter")
    page.ready("notebooks/00_start_here.ipynb")
    wait(lambda: page.prompts()[0] == "[1]:")
    wait(lambda: page.browser.evaluate("document.activeElement.matches('.jp-Cell, .jp-Notebook')"))


def test_a_picture_is_dark_in_the_dark_and_keeps_its_letters_in_a_narrow_window(page):
    page.open("notebooks/06_pipeline_parallelism.ipynb")
    page.run(page.nth(0))
    cell = page.code_cell("print(naive(stages=4")
    page.run(cell)
    picture = cell.locator("img")
    page.in_the_dark()
    wait(lambda: is_drawn_for_the_dark(picture))
    page.screenshot("picture_dark")
    page.browser.set_viewport_size({"width": 820, "height": 900})
    assert picture.bounding_box()["width"] >= float(picture.get_attribute("width"))  # 72 pixels an inch: 12 pt is 12 px
    page.browser.set_viewport_size({"width": 1920, "height": 1080})
    measured = page.browser.locator(f"{NOTEBOOK} .jp-RenderedMarkdown > p").evaluate_all(LONGEST)
    assert 60 < measured < 90


LONGEST = """all => Math.max(...all.filter(e => e.offsetHeight).map(
  e => e.textContent.length / (e.offsetHeight / parseFloat(getComputedStyle(e).lineHeight))))"""


def test_code_has_room_for_its_columns_and_wraps_in_a_narrow_window(page):
    page.browser.set_viewport_size({"width": 1280, "height": 800})
    page.open("notebooks/06_pipeline_parallelism.ipynb")
    lines = page.browser.locator(f"{NOTEBOOK} .jp-Cell:not(.lm-mod-hidden) .cm-line")
    wrapped = "all => all.filter(e => e.offsetHeight > 30).length"  # lines that take two
    wait(lambda: lines.count() > 40)
    assert lines.evaluate_all(wrapped) == 0
    page.screenshot("code_1280")
    page.browser.set_viewport_size({"width": 600, "height": 800})
    wait(lambda: lines.evaluate_all(wrapped))
    scrolls = "all => all.filter(e => e.scrollWidth > e.clientWidth).length"
    assert page.browser.locator(f"{NOTEBOOK} .cm-scroller").evaluate_all(scrolls) == 0
    page.screenshot("code_600")


def test_another_day_the_contents_come_back_beside_a_lesson(page):
    page.browser.goto(page.lab.address)
    page.browser.locator(".course-desk-cards li").first.wait_for()
    workspace = next((page.lab.desk / ".course" / "jupyter" / "workspaces").iterdir())
    wait(lambda: '"collapsed":true' in workspace.read_text().partition('"left"')[2].replace(" ", "")[:200])
    page.browser.reload()
    page.browser.get_by_role("link", name="00 · Start here").click()
    page.browser.locator("#table-of-contents").get_by_text("1 · A rank").wait_for()
    page.browser.goto(page.lab.address)
    page.browser.get_by_role("link", name="Exercises 00").click()
    page.browser.locator("#table-of-contents").get_by_text("Pass it on").first.wait_for()


def test_to_open_a_lesson_changes_nothing(page, lab):
    name = "notebooks/02_ddp.ipynb"
    before = (lab.desk / name).read_bytes()
    page.open(name)
    assert page.browser.locator(".jp-mod-dirty").count() == 0
    assert (lab.desk / name).read_bytes() == before


def test_the_names_of_all_notebooks_can_be_read(page):
    for folder, name in (("notebooks", "06_pipeline_parallelism"), ("exercises", "03_padding_and_masking")):
        page.open(f"{folder}/{name}.ipynb")
        if not page.browser.locator("#filebrowser").is_visible():
            page.browser.locator(".jp-SideBar .lm-TabBar-tab[data-id=filebrowser]").click()
        names = page.browser.locator("#filebrowser .jp-DirListing-itemName")
        page.browser.locator("#filebrowser").get_by_text("03_padding_and_masking.ipynb").wait_for()
        cut = names.evaluate_all("all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)")
        assert cut == []
        assert names.count() > 9
    page.screenshot("file_names")


def test_an_exercise_is_failed_and_then_solved(page, lab):
    number, name = "00.1", "exercises/00_start_here.ipynb"
    page.open(name)
    page.run(page.code_cell("from course_lib"))
    answer, check = page.code_cell("NotImplementedError", 0), page.code_cell(f'check("{number}"')
    check.get_by_role("button", name="Hint").click()
    wait(lambda: check.get_by_role("status").locator(".course-box").evaluate(IN_VIEW))
    wrong = f"def {exercises()[number].answer}(*arguments):\n    return None"
    page.write(answer, wrong)
    answer = page.code_cell("return None", 0)
    page.run(answer)
    check.locator(".cm-content").click()
    page.browser.keyboard.press("Shift+Enter")
    wait(lambda: f"✗ {number}" in page.shown(check))
    wait(lambda: "jp-mod-active" in check.get_attribute("class") and page.status() == "idle")
    wait(lambda: check.locator(".jp-OutputArea .course-head").evaluate(IN_VIEW))
    page.screenshot("exercise_failed")
    right = answer_cell(exercises()[number])
    page.write(answer, right)
    answer = page.code_cell(f"def {exercises()[number].answer}", 0)
    page.run(answer)
    assert f"✓ {number}" in page.run(check)
    wait(lambda: check.get_by_role("button", name="exercise 00.2").count())
    assert check.get_by_role("status").locator("*").count() == 0  # the hint is not needed any more
    assert "1 of 2 exercises passed" in page.browser.locator(f"{NOTEBOOK} .course-desk-end").inner_text()
    page.screenshot("exercise_solved")
    assert page.axe(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output") == []
    assert right.splitlines()[0] in json.dumps(page.saved(name))
    assert json.loads((lab.desk / "progress.json").read_text())[number]["tries"] == 2


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_to_the_end(page, name):
    path = f"notebooks/{name}.ipynb"
    page.open(path)
    page.run_all()
    page.screenshot(name)
    assert page.prompts() == in_order(page)
    stored = code_cells(json.loads((ROOT / path).read_text()))
    for mine, ours in zip(code_cells(page.saved(path)), stored, strict=True):
        assert failed(mine) == failed(ours), "".join(ours["source"])
        assert bool(mine["outputs"]) >= bool(ours["outputs"]), "".join(ours["source"])


def test_all_cells_run_again_with_a_new_kernel(page):
    page.open("exercises/01_single_gpu.ipynb")
    page.run(page.code_cell("from course_lib"))
    assert page.prompts()[0] == "[1]:"
    page.restart_and_run_all()
    assert page.prompts() == in_order(page)


def in_order(page) -> list[str]:
    return [f"[{count + 1}]:" for count in range(len(page.prompts()))]


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def failed(cell: dict) -> list[str]:
    return [output["ename"] for output in cell["outputs"] if output["output_type"] == "error"]


def test_what_jupyter_remembers_stays_on_the_desk(page, lab):
    page.open("notebooks/00_start_here.ipynb")
    assert [path.name for path in (lab.home / ".jupyter").rglob("*")] == ["jupyter_server_config.py"]
    assert (lab.desk / ".course" / "jupyter").is_dir()


def test_in_a_narrow_window_the_contents_leave_the_home_page_its_room(page):
    page.browser.set_viewport_size({"width": 390, "height": 844})
    page.browser.goto(page.lab.address)
    card = page.browser.locator(".course-desk-cards li").first
    card.wait_for()
    wait(lambda: card.bounding_box()["width"] > 250)
