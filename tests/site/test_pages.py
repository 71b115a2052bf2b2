"""The site in a real browser: nothing comes from elsewhere, things are found, fit, and can be read by everybody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from course_lib.checks.catalog import LESSONS
from tests.browser.lab import axe, is_drawn_for_the_dark, pale_pixels, picture
from tests.conftest import PATIENCE

pytestmark = pytest.mark.slow

LESSON, PADDING = "lessons/06_pipeline_parallelism.html", "lessons/03_padding_and_masking.html"
PAGES = ("index.html", LESSON, PADDING, "exercises/04_accumulation.html", "api/launcher.html")
OTHERS = ("benchmarks.html", "handbook/jobs.html", "search.html?q=padding")
SCREENS = {"phone": (390, 844), "laptop": (1280, 800), "projector": (1920, 1080)}


@pytest.fixture
def page(chromium) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE * 1000)
    yield context.new_page()
    context.close()


def search(page: Any, address: str, words: str) -> list[str]:
    """The addresses of what a search finds, best first."""
    page.goto(f"{address}search.html?q={words}")
    page.locator("#search-results p.search-summary", has_text="finished").or_(
        page.locator("#search-results p.search-summary", has_text="found")
    ).first.wait_for()
    return page.locator("#search-results ul.search li > a").evaluate_all("links => links.map(link => link.href)")


def settles(page: Any, condition: str) -> bool:
    """Whether it becomes true: a busy machine takes its time to lay a page out anew."""
    from playwright.sync_api import TimeoutError as StillNot

    try:
        page.wait_for_function(condition, timeout=10_000)
    except StillNot:
        return False
    return True


@dataclass
class Visit:
    """What was seen when a page was opened."""

    asked: list[str] = field(default_factory=list)  # addresses
    too_wide: list[str] = field(default_factory=list)  # screens on which it scrolls sideways


@pytest.fixture(scope="module")
def visits(chromium, site_address) -> dict[str, Visit]:
    """Each page, opened once, and seen on each screen."""
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    seen: dict[str, Visit] = {}
    for name in (*PAGES, *OTHERS):
        page, visit = context.new_page(), Visit()
        page.on("request", lambda request, visit=visit: visit.asked.append(request.url))
        page.goto(site_address + name)
        if name.startswith("search"):
            page.locator("#search-results li .context").nth(5).wait_for()  # its results are what may be wide
        for screen, (width, height) in SCREENS.items():
            page.set_viewport_size({"width": width, "height": height})
            if not settles(page, "document.documentElement.scrollWidth <= innerWidth"):
                visit.too_wide.append(screen)
        page.close()
        seen[name] = visit
    context.close()
    return seen


def test_no_request_leaves_the_site(visits, site_address):
    assert all(visit.asked for visit in visits.values())
    asked = [(name, url) for name, visit in visits.items() for url in visit.asked]
    assert [each for each in asked if not each[1].startswith((site_address, "data:"))] == []


def test_no_page_scrolls_sideways(visits):
    assert {name: visit.too_wide for name, visit in visits.items() if visit.too_wide} == {}


def test_a_search_for_padding_finds_lesson_03_first(page, site_address):
    found, _, section = search(page, site_address, "padding")[0].partition("#")
    assert (found.split("?")[0], bool(section)) == (site_address + PADDING, True)  # in which the words are


def test_a_search_finds_a_title_once_and_no_page_with_answers(page, site_address):
    found = search(page, site_address, "padding")
    assert [address for address in found if "/teaching/" in address or "readme" in address] == []
    titles = page.locator("#search-results ul.search > li > a").all_inner_texts()
    assert len(titles) == len(set(titles)) > 5
    assert "Exercises 03 · Padding and masking" in titles


@pytest.mark.parametrize("width", [1280, 1440, 1920])
def test_on_a_desktop_no_line_of_code_wraps_and_code_begins_where_prose_does(page, site_address, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(site_address + LESSON)
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert page.locator(".cell_input pre").evaluate_all(WRAPPED) == []
    assert min(page.locator(".cell_input pre").evaluate_all(LETTERS)) >= 12
    blocks = "[...document.querySelectorAll('article section > p, .cell_input, article :is(.course-box, .admonition)')]"
    blocks += ".filter(e => e.offsetHeight)"
    left = page.evaluate(f"{blocks}.map(e => Math.round(e.getBoundingClientRect().left / 4))")
    right = page.evaluate(f"{blocks}.map(e => Math.round(e.getBoundingClientRect().right / 4))")
    assert len(left) > 50
    assert (len(set(left)), len(set(right))) == (1, 1)
    lines = "e => e.textContent.length / (e.offsetHeight / parseFloat(getComputedStyle(e).lineHeight))"
    longest = page.locator("article section > p:not([hidden])").evaluate_all(f"all => Math.max(...all.map({lines}))")
    assert 60 < longest < 90


LETTERS = "all => all.map(e => parseFloat(getComputedStyle(e).fontSize))"
# The blocks that are taller than their lines.
WRAPPED = """all => all.filter((pre) => {
  const style = getComputedStyle(pre), lines = pre.textContent.trimEnd().split("\\n").length;
  const height = pre.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
  return height > (lines + 0.5) * parseFloat(style.lineHeight);
}).map((pre) => pre.textContent)"""


@pytest.mark.parametrize("media", ["screen", "print"])
def test_where_code_must_wrap_it_fits_and_continues_to_the_right(page, site_address, media):
    page.set_viewport_size({"width": 520, "height": 900})
    page.emulate_media(media=media)
    page.goto(site_address + LESSON)
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    wide = "all => all.filter(e => e.scrollWidth > e.clientWidth).length"
    assert page.locator("article pre:not(.columns)").evaluate_all(wide) == 0
    assert page.evaluate(CONTINUED) > 5


# How many indented lines wrap; -1 if one continues no further right than it begins.
CONTINUED = """(() => {
  let count = 0;
  for (const line of document.querySelectorAll("article .cell_input pre .indented")) {
    const range = document.createRange();
    range.selectNodeContents(line);
    const rects = [...range.getClientRects()].filter((each) => each.width);
    const words = line.firstElementChild.getBoundingClientRect().left;
    const later = rects.filter((each) => each.top > rects[0].top + 10);
    if (!later.length) continue;
    if (Math.min(...later.map((each) => each.left)) < words + 10) return -1;
    count += 1;
  }
  return count;
})()"""


def test_on_a_phone_tables_of_words_keep_their_columns_and_the_ring_its_letters(page, site_address):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(site_address + LESSON)
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    tables = page.locator(".cell_output pre.columns")
    assert tables.count() > 2
    assert set(tables.evaluate_all("all => all.map(e => getComputedStyle(e).whiteSpace)")) == {"pre"}
    page.wait_for_function("document.querySelector('pre.columns').tabIndex == 0")  # it scrolls: keys come to it
    page.goto(site_address)
    letters = "all => all.map(e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)"
    assert min(page.locator(".moving-picture text").evaluate_all(letters)) > 12


def test_a_picture_has_letters_of_12_px_or_scrolls_and_is_dark_in_the_dark(page, site_address):
    page.emulate_media(color_scheme="dark")
    page.goto(site_address + LESSON)
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    pictures = page.locator("figure.drawn img")
    filters = set(pictures.evaluate_all("all => all.map(e => getComputedStyle(e).filter)"))
    assert len(filters) == 1
    assert is_drawn_for_the_dark(pictures.first)
    for width in (390, 820, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        small = "all => all.filter(e => e.getBoundingClientRect().width < e.getAttribute('width')).length"
        assert pictures.evaluate_all(small) == 0  # 72 pixels an inch: 12 points are 12 pixels
        stills = page.locator(".course-still img").evaluate_all("all => all.map(e => e.offsetWidth / e.naturalWidth)")
        assert min(stills) > 0.9  # their letters have 13
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("document.querySelector('.course-still').tabIndex == 0")  # it scrolls: keys come to it
    page.emulate_media(media="print")
    cut = "all => all.filter(e => e.offsetWidth > e.closest('.cell_output').offsetWidth).length"
    assert page.locator("figure.drawn img, .course-still img").evaluate_all(cut) == 0


def test_in_the_dark_arrows_have_no_pale_edges(page, site_address):
    page.emulate_media(color_scheme="dark")
    page.goto(site_address + "lessons/00_start_here.html")
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert pale_pixels(page.locator("figure.drawn img").nth(2)) < 200


def test_the_front_page_has_a_card_for_each_lesson_and_two_ways_in(page, site_address):
    page.goto(site_address)
    cards = page.locator(".lesson-card")
    assert cards.count() == len(LESSONS)
    assert cards.filter(has=page.locator("svg rect")).filter(has_text=" minutes").count() == len(LESSONS)
    assert page.locator(".ways-in a").all_inner_texts() == ["Start", "Read lesson 00"]
    page.get_by_role("link", name="Read lesson 00").click()
    assert page.title().startswith("Lesson 00 · ")


def test_a_search_for_launch_finds_its_reference(page, site_address):
    assert any(
        "api/launcher.html#course_lib.launcher.launch" in found for found in search(page, site_address, "launch")
    )


def test_axe_finds_nothing_serious(page, site_address):
    found = {}
    page.emulate_media(reduced_motion="reduce")
    for name in PAGES:
        page.goto(site_address + name)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.locator(f"html[data-theme={scheme}]").wait_for()
            page.screenshot(path=picture(f"site_{name.replace('/', '_')}_{scheme}"))
            found[name, scheme] = axe(page, "html")
    assert {where: faults for where, faults in found.items() if faults} == {}


def test_the_picture_moves_unless_it_is_paused_or_less_motion_is_asked_for(page, site_address):
    running = "document.getAnimations().filter(each => each.playState == 'running').length"
    page.goto(site_address)
    assert page.evaluate(running) > 20
    page.get_by_label("Pause the animation").check()
    assert page.evaluate(running) == 0
    page.emulate_media(reduced_motion="reduce")
    page.reload()
    assert page.evaluate(running) == 0
    assert page.locator(".moving-picture .words.during2").first.evaluate("e => getComputedStyle(e).opacity") == "1"


def test_formulas_are_drawn_by_the_browser_itself(page, site_address):
    page.goto(site_address + LESSON)
    assert page.locator("math").count() > 20
    assert page.locator("script[src*=mathjax i], script[src*=katex i]").count() == 0
    assert page.locator("math mfrac").first.bounding_box()["height"] > 20


def test_the_site_is_smaller_than_40_megabytes(site_folder):
    assert sum(file.stat().st_size for file in site_folder.rglob("*") if file.is_file()) < 40e6
