"""Every widget in a real JupyterLab: with the keyboard alone, to a screen reader, in the light and in the dark."""

from __future__ import annotations

import pytest

from tests.browser.lab import NOTEBOOK, Page, wait
from tests.browser.widgets import IMPORTS, WIDGETS, write_notebook

pytestmark = pytest.mark.slow

# What has the focus: its role or tag, and what a screen reader would call it.
FOCUSED = """() => {
  const e = document.activeElement;
  const name = e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent;
  return { widget: e.closest(".course-widget")?.getAttribute("aria-label"), name: name.trim() };
}"""


@pytest.fixture(scope="module")
def widgets(chromium, lab):
    """A page with all widgets on it, one below the other."""
    write_notebook(lab.desk / "notebooks" / "widgets.ipynb", IMPORTS, *WIDGETS.values())
    context = chromium.new_context(viewport={"width": 1366, "height": 1100})
    page = Page(lab, context.new_page())
    page.open("notebooks/widgets.ipynb")
    page.run_all()
    wait(lambda: page.browser.locator(".course-widget svg").count() >= len(WIDGETS))
    yield page
    context.close()


def widget(page, name: str):
    """The widget of that name, in view."""
    cell = page.nth(1 + list(WIDGETS).index(name))
    cell.scroll_into_view_if_needed()
    return cell.locator(".course-widget")


@pytest.mark.parametrize("name", WIDGETS)
def test_a_slider_moved_by_a_key_redraws_and_speaks(widgets, name):
    one = widget(widgets, name)
    slider, stage = one.locator("input[type=range]").first, one.locator(".stage")
    before, value = stage.inner_html(), slider.get_attribute("aria-valuetext")
    assert value
    slider.focus()
    widgets.browser.keyboard.press("ArrowRight")
    wait(lambda: stage.inner_html() != before)
    wait(lambda: slider.get_attribute("aria-valuetext") != value)
    assert one.get_by_role("status").inner_text().strip()
    changed = stage.inner_html()
    widgets.browser.keyboard.press("ArrowLeft")
    wait(lambda: slider.get_attribute("aria-valuetext") == value)
    wait(lambda: stage.inner_html() != changed)


@pytest.mark.parametrize("name", WIDGETS)
def test_the_tab_key_comes_to_everything_and_everything_has_a_name(widgets, name):
    one = widget(widgets, name)
    expected = one.locator("input, select, button, [tabindex='0']").count()
    one.locator("input, select").first.focus()
    names = []
    for _ in range(expected):
        focused = widgets.browser.evaluate(FOCUSED)
        assert focused["widget"] == one.get_attribute("aria-label")
        names.append(focused["name"])
        widgets.browser.keyboard.press("Tab")
    assert all(names)
    assert len(set(names)) == expected
    assert widgets.browser.evaluate(FOCUSED)["widget"] != one.get_attribute("aria-label")


@pytest.mark.parametrize("name", WIDGETS)
def test_axe_finds_nothing_serious_and_the_picture_is_described(widgets, name):
    one = widget(widgets, name)
    assert one.get_attribute("aria-label")
    place = list(WIDGETS).index(name) + 1
    assert widgets.axe(f"{NOTEBOOK} .jp-CodeCell:nth-of-type({place + 1}) .jp-OutputArea-output") == []
    one.screenshot(path=widgets.screenshot("widgets").with_name(f"widget_{place}.png"))


def test_an_action_is_moved_with_the_keys_until_nobody_can_go_on(widgets):
    one = widget(widgets, "schedule bench, 3 stages")
    one.locator("[data-item][tabindex='0']").focus()
    item = widgets.browser.evaluate("document.activeElement.dataset.item")
    before = place_of(one, item)
    widgets.browser.keyboard.press("Shift+ArrowRight")
    wait(lambda: place_of(one, item) == before + 1)
    assert widgets.browser.evaluate("document.activeElement.dataset.item") == item
    for _ in range(6):
        now = place_of(one, item)
        widgets.browser.keyboard.press("Shift+ArrowRight")
        wait(lambda now=now: place_of(one, item) == now + 1)
    assert "Stuck" in one.get_by_role("status").inner_text()
    one.screenshot(path=widgets.screenshot("widgets").with_name("bench_stuck.png"))


def place_of(one, item: str) -> int:
    return int(one.locator(f"[data-item='{item}']").get_attribute("data-place"))


@pytest.mark.parametrize(
    ("name", "shape"), [("schedules, 4 stages", "rect.tip"), ("schedule bench, 3 stages", "[data-item]")]
)
def test_pointing_at_a_block_says_what_it_is(widgets, name, shape):
    block = widget(widgets, name).locator(shape).first
    assert block.locator("title").text_content().startswith("stage 0")
    corner = block.bounding_box()
    on_top = "([shape, x, y]) => shape.contains(document.elementFromPoint(x, y))"
    assert widgets.browser.evaluate(on_top, [block.element_handle(), corner["x"] + 3, corner["y"] + 9])


def test_a_schedule_is_run_on_real_ranks_from_the_keyboard(widgets):
    one = widget(widgets, "schedule bench, 3 stages")
    again = one.get_by_role("button", name="Begin again")
    again.focus()
    widgets.browser.keyboard.press("Enter")
    wait(lambda: "Stuck" not in one.get_by_role("status").inner_text())
    run = one.get_by_role("button", name="Run")
    run.focus()
    widgets.browser.keyboard.press("Enter")
    wait(lambda: "Measured:" in one.get_by_role("status").inner_text())
    assert "measured on real ranks" in one.locator(".stage").inner_html()
    one.screenshot(path=widgets.screenshot("widgets").with_name("bench_run.png"))


def test_in_the_dark(widgets):
    widgets.in_the_dark()
    picture = widget(widgets, "schedule bench, 3 stages").locator(".stage svg")
    assert picture.evaluate("e => getComputedStyle(e).filter") == "none"  # inverted, colors would change their meaning
    assert picture.locator("rect.forward").first.evaluate("e => getComputedStyle(e).fill") == "rgb(0, 114, 178)"
    for place, name in enumerate(WIDGETS):
        widget(widgets, name).screenshot(path=widgets.screenshot("widgets").with_name(f"widget_{place + 1}_dark.png"))
    assert widgets.axe(f"{NOTEBOOK} .jp-OutputArea-output") == []


CUT = """stage => [...stage.querySelectorAll("text")]
  .filter(one => one.getBoundingClientRect().right > stage.getBoundingClientRect().left + stage.scrollWidth + 1)
  .map(one => one.textContent)"""


def test_on_a_projector(chromium, lab, widgets):
    """At 150%, in a narrow column, the letters in the pictures have 12 px."""
    context = chromium.new_context(viewport={"width": 911, "height": 800}, device_scale_factor=1.5)
    page = Page(lab, context.new_page())
    page.open("notebooks/widgets.ipynb")
    page.run_all()
    for place, name in enumerate(WIDGETS):
        one = widget(page, name)
        one.screenshot(path=page.screenshot("widgets").with_name(f"widget_{place + 1}_large.png"))
        assert one.evaluate("e => e.scrollWidth <= e.clientWidth")  # the picture scrolls, and not all of it
        size = "all => all.map(one => parseFloat(getComputedStyle(one).fontSize) * one.getScreenCTM().a)"
        assert one.locator(".stage").evaluate(CUT) == [], name
        assert min(one.locator("svg text").evaluate_all(size)) > 11.9, name
    assert page.axe(f"{NOTEBOOK} .jp-OutputArea-output") == []
    context.close()
