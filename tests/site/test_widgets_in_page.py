"""Widgets that run in the website's pages: they draw what the lesson's do, by keyboard too, and call nobody."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser.lab import axe, picture, wait
from tests.site.conftest import ROOT, serve

sys.path[:0] = [str(ROOT / "docs" / "_extensions"), str(ROOT / "docs" / "_widgets")]

import widgets  # noqa: E402
from page_modules import CannotRunInPage, needed_modules  # noqa: E402
from pyodide_files import NoPyodide, pyodide_folder  # noqa: E402

from tests.site import random_use  # noqa: E402

pytestmark = pytest.mark.slow

NAMES = list(widgets.EXPLORERS)
CASES = 500
USE_AT_RANDOM = """async ([source, cases]) => {
  const there = await python;
  there.FS.writeFile("/course/random_use.py", source);
  const use = there.pyimport("random_use");
  return [...Array(cases).keys()].map((seed) => use.digest(seed));
}"""
FOCUSED = "() => (document.activeElement.labels?.[0] ?? document.activeElement).textContent.trim()"


@pytest.fixture(scope="module")
def page_address(tmp_path_factory) -> Iterator[str]:
    """A page with all widgets, somewhere below the server's root, as on GitHub Pages."""
    try:
        pyodide_folder()
    except NoPyodide as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("pages")
    widgets.write_page(folder / "repository" / "course")
    with serve(folder) as address:
        yield f"{address}repository/course/index.html"


@pytest.fixture(scope="module")
def page(chromium, page_address) -> Iterator[Any]:
    """The page, with all its widgets running. What it asks for is kept in `page.asked`."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.asked = []
    context.on("request", lambda request: page.asked.append(request.url))
    page.goto(page_address)
    for button in page.get_by_role("button", name="Run it here").all():
        button.evaluate("button => button.click()")
    wait(lambda: page.locator(".course-widget").count() == len(NAMES))
    yield page
    context.close()


def widget(page: Any, name: str) -> Any:
    return page.locator(f".course-run[data-explorer={name}] .course-widget")


def test_python_in_a_page_draws_what_python_here_draws(page):
    (worker,) = page.workers
    there = worker.evaluate(USE_AT_RANDOM, [Path(random_use.__file__).read_text(), CASES])
    assert [seed for seed in range(CASES) if random_use.digest(seed) != there[seed]] == []


def test_nothing_leaves_the_page_and_python_is_loaded_once(page, page_address):
    assert {urlsplit(address).netloc for address in page.asked} == {urlsplit(page_address).netloc}
    assert all(urlsplit(address).path.startswith("/repository/course/") for address in page.asked)
    assert len([address for address in page.asked if "worker.js" in address]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_widget_is_used_by_keyboard_alone(page, name):
    one = widget(page, name)
    slider, stage = one.locator("input[type=range]").first, one.locator(".stage")
    one.locator("input, select").first.focus()
    while not slider.evaluate("slider => slider === document.activeElement"):
        page.keyboard.press("Tab")
    before, value = stage.inner_html(), slider.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowRight")
    wait(lambda: stage.inner_html() != before)
    assert slider.get_attribute("aria-valuetext") != value
    assert one.get_by_role("status").inner_text().strip()


def test_an_action_of_the_bench_is_moved_with_the_keys(page):
    one = widget(page, "schedule_bench")
    one.locator("[data-item][tabindex='0']").focus()
    item = page.evaluate("document.activeElement.dataset.item")
    page.keyboard.press("Shift+ArrowRight")
    wait(lambda: one.locator(f"[data-item='{item}']").get_attribute("data-place") == "1")
    assert page.evaluate("document.activeElement.dataset.item") == item


def test_an_action_of_the_bench_and_its_name_in_the_text_light_up_together(page):
    one = widget(page, "schedule_bench")
    box, name = one.locator("[data-item='1:F2']"), one.locator("[data-of='1:F2']")
    name.hover()
    assert box.get_attribute("class") == "lit"
    box.hover()
    assert name.get_attribute("class") == "lit"
    one.locator("[data-of='0:F0']").hover()
    assert not name.get_attribute("class")


def test_an_action_of_any_schedule_and_its_name_in_the_text_light_up_together(page):
    one = widget(page, "explore_schedules")
    one.get_by_label("schedule", exact=True).select_option("interleaved")
    box, name = one.locator(".stage [data-of='1:F2v1']"), one.locator(".below [data-of='1:F2v1']")
    box.wait_for(state="attached")
    name.hover()
    assert box.get_attribute("class") == "tip lit"
    assert float(box.evaluate("e => parseFloat(getComputedStyle(e).strokeWidth)")) == 3
    box.hover()
    assert name.get_attribute("class") == "lit"


def test_messages_of_an_all_reduce_move_unless_less_motion_is_asked_for(page):
    one = widget(page, "explore_all_reduce")
    stage = one.locator(".stage")
    before = stage.inner_html()
    one.get_by_role("button", name="Next").click()
    wait(lambda: stage.inner_html() != before)
    assert stage.locator(".head").first.evaluate("e => e.style.getPropertyValue('--from')").count("px") == 2
    assert stage.locator(".head").first.evaluate("e => getComputedStyle(e).animationName") == "course-arrive"
    page.emulate_media(reduced_motion="reduce")
    assert stage.locator(".head").first.evaluate("e => getComputedStyle(e).animationName") == "none"
    page.emulate_media(reduced_motion="no-preference")


def test_buttons_that_need_real_ranks_are_named_and_not_there(page):
    bench, scaling = widget(page, "schedule_bench"), widget(page, "explore_scaling")
    assert not bench.get_by_role("button", name="Run on real ranks").count()
    assert not scaling.get_by_role("button").count()
    assert "there is also “Run on real ranks”" in bench.locator(".help").inner_text()


def test_only_the_last_place_of_a_quick_slider_waits_to_be_drawn(page):
    one = widget(page, "explore_meshes")
    slider = one.locator("input[type=range]").nth(3)
    last = slider.evaluate("""slider => {
      for (const place of [0, 1, 2, 3, 4, 5, 6, 2]) {
        slider.value = place;
        slider.dispatchEvent(new Event("input"));
      }
      return slider.closest(".field").querySelector(".value").textContent;
    }""")
    assert last == "4"
    wait(lambda: "1 x 4" in one.locator(".below").inner_text() and "1 x 8" not in one.locator(".below").inner_text())
    assert slider.get_attribute("aria-valuetext") == "4"


def test_axe_finds_nothing_serious_in_the_running_widgets_on_a_laptop_and_on_a_phone(page):
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=picture(f"widgets_in_a_page_{width}"), full_page=True)
        assert axe(page, "main") == []


def test_what_cannot_be_loaded_is_said_in_a_sentence(chromium, page_address):
    page = chromium.new_page()
    page.route("**/modules.zip", lambda route: route.fulfill(status=404))
    page.goto(page_address)
    page.get_by_role("button", name="Run it here").first.click()
    status = page.get_by_role("status").first
    wait(lambda: "could not be loaded" in status.inner_text())
    assert "Load the page again, or run the lesson on your machine" in status.inner_text()
    page.close()


def test_a_page_gets_no_module_that_imports_what_it_does_not_have(tmp_path):
    assert not {"torch", "numpy"} & {Path(name).stem for name in needed_modules()}
    (tmp_path / "start.py").write_text("from course_lib.core.model import Embed\n")
    with pytest.raises(CannotRunInPage, match=r"model.py imports torch"):
        needed_modules(tmp_path / "start.py")


@pytest.mark.parametrize(
    ("cell", "call"),
    [
        ("explore_meshes()", ("explore_meshes", {})),
        ("schedule_bench(2, start='gpipe')", ("schedule_bench", {"stages": 2, "start": "gpipe"})),
        ("explore_all_reduce(ranks)", None),
        ("timeline(run)", None),
    ],
)
def test_a_cell_says_which_explorer_with_which_arguments(cell, call):
    assert widgets.explorer_call(cell) == call


def test_a_lesson_of_the_site_offers_to_run_its_widgets(site_folder):
    lesson = (site_folder / "lessons" / "06_pipeline_parallelism.html").read_text()
    assert re.findall(r'data-explorer="(\w+)"', lesson) == ["schedule_bench", "explore_schedules"]
    linked = re.findall(r'(?:src|href)="\.\./(_static/widgets/[^"?]+)', lesson)
    assert {Path(name).name for name in linked} == {"run.js", "widgets.css"}
    assert all((site_folder / name).is_file() for name in linked)
    assert "_static/widgets" not in (site_folder / "index.html").read_text()  # pages without widgets load nothing


def test_a_widget_behind_a_question_can_be_run_and_one_that_cannot_says_so(site_folder):
    def page(lesson: str) -> str:
        return (site_folder / "lessons" / f"{lesson}.html").read_text()

    assert re.findall(r'data-explorer="(\w+)"', page("00_start_here")) == ["explore_all_reduce"]
    assert page("03_padding_and_masking").count("run the lesson to use it") == 1  # it needs the lesson's lengths


def test_a_lesson_of_the_site_runs_its_widgets(chromium, site_address):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{site_address}lessons/06_pipeline_parallelism.html")
    buttons = page.get_by_role("button", name="Run it here")
    assert buttons.count() == 2
    buttons.first.focus()
    page.keyboard.press("Enter")
    wait(lambda: page.locator(".course-widget").count() == 1)
    one = page.locator(".course-widget")
    assert "makespan 12" in one.get_by_role("status").inner_text()  # GPipe, as the lesson's cell asks
    assert page.evaluate(FOCUSED) == page.evaluate("document.querySelector('.course-widget label').textContent")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    one.screenshot(path=picture("bench_in_a_lesson_dark"))
    assert axe(page, ".course-run") == []
    page.close()
